"""Energies of bits, the RBM and the DBM, against enumeration of all their units."""

import math

import pytest
import torch

import eblvm_lit as eb
from cases import binary, make_binary
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.errors import ConfigError

pytestmark = pytest.mark.usefixtures("float64")
D = 2
# each has a smaller group on another side, and together they have at most 8 units
MODELS = {
    "rbm": lambda: eb.BernoulliRBM(v_dim=D, h_dim=4),
    "rbm-few-latents": lambda: eb.BernoulliRBM(v_dim=D, h_dim=1),
    "dbm": lambda: eb.DeepBoltzmannMachine(v_dim=D, h_dim=5, h1_dim=2, n_mean_field=60),
    "dbm-wide": lambda: eb.DeepBoltzmannMachine(v_dim=D, h_dim=5, h1_dim=4, n_mean_field=60),
}


@pytest.fixture(params=MODELS)
def energy(request):
    torch.manual_seed(2)
    return make_binary(MODELS[request.param]()).requires_grad_(False)


def joint(energy):
    """Return all states v (S, d) and h (S, m), and their energies (S,)."""
    states = binary(D + energy.h_dim)
    v, h = states.split([D, energy.h_dim], 1)
    return v, h, energy.energy(v, h)


def visible(energy):
    """Return all v (2^d, d) and F(v) (2^d,), summed over the energies of all h."""
    _, _, E = joint(energy)
    return binary(D), -(-E.view(2**D, -1)).logsumexp(1)


def test_log_z_is_the_sum_over_all_states(energy):
    torch.testing.assert_close(energy.log_partition(), (-joint(energy)[2]).logsumexp(0))
    small = min(energy.layers().U.shape)
    assert energy.n_enumerated == small


def test_visibles_given_latents(energy):
    v, h, E = joint(energy)
    for state in h.unique(dim=0):
        rows = (h == state).all(1)
        p = (-E[rows]).softmax(0)
        torch.testing.assert_close(energy.visible_mean(state), p @ v[rows])


def test_draws_are_bits_with_these_probabilities(energy):
    h = torch.ones(energy.h_dim)
    u = (torch.arange(1000) + 0.5).unsqueeze(1).expand(-1, D) / 1000
    drawn = energy.draw_visible(h.expand(1000, -1), u)
    torch.testing.assert_close(drawn.mean(0), energy.visible_mean(h), atol=1e-3, rtol=0)
    for noise in (energy.visible_noise((7,), h, keyed_generator(0)), energy.latent_noise((7,), h, keyed_generator(0))):
        assert 0 <= noise.min() < noise.max() < 1


def transition(energy, v, before, after):
    """Compute the probability that ``move_latent`` moves h from ``before`` to ``after``, both (S, m), given v, shape (S,).

    The noise of each unit is the middle of one of two ranges, of which one gives 1 and the other 0; the probability of
    the drawn bit is found by bisection of its noise.
    """
    p = torch.ones(len(after))
    for j in range(energy.h_dim):
        low = torch.zeros(len(after))
        high = torch.ones(len(after))
        for _ in range(40):  # h_j is 1 for noise below its probability, given the other units at their drawn values
            middle = (low + high) / 2
            noise = torch.where(after == 1, 0.0, 1.0 - 1e-12)
            noise[:, j] = middle
            one = energy.move_latent(v.expand(len(after), -1), before, noise)[:, j] == 1
            low = torch.where(one, middle, low)
            high = torch.where(one, high, middle)
        p = p * torch.where(after[:, j] == 1, low, 1 - low)
    return p


def test_moves_of_the_latents_leave_their_posterior_invariant(energy):
    v = torch.tensor([1.0, 0.0])
    h = binary(energy.h_dim)
    p = (-energy.energy(v.expand(len(h), -1), h)).softmax(0)
    n = len(h)
    moved = p @ transition(energy, v, h.repeat_interleave(n, 0), h.repeat(n, 1)).view(n, n)
    torch.testing.assert_close(moved, p, atol=1e-9, rtol=1e-9)


def test_gibbs_sweeps_leave_the_model_invariant(energy):
    n = 8000
    generator = keyed_generator(1)
    v = energy.sample_exact(n, generator)
    _, _, E = joint(energy)
    truth = (-E).softmax(0).view(2**D, -1).sum(1)
    chains = eb.Gibbs(n_steps=12).sample(energy, n, generator)
    for found in (v, chains):
        counts = torch.stack([(found == state).all(1).double().mean() for state in binary(D)])
        assert ((counts - truth).abs() < 5 * (truth * (1 - truth) / n).sqrt()).all()


def test_samples_of_both_groups_have_the_joint_distribution(energy):
    n = 8000
    x, y = energy.sample_layers(n, keyed_generator(1))
    layers = energy.layers()
    states, others = binary(x.shape[1] + y.shape[1]).split([x.shape[1], y.shape[1]], 1)
    p = (states @ layers.a + others @ layers.n + ((states @ layers.U) * others).sum(1)).softmax(0)
    products = x.unsqueeze(2) * y.unsqueeze(1)
    mean = torch.einsum("s,si,sj->ij", p, states, others)
    assert ((products.mean(0) - mean).abs() < 5 * (mean * (1 - mean) / n).sqrt()).all()


def test_fitting_starts_at_the_means_of_the_data_and_is_done_once():
    energy = eb.BernoulliRBM(v_dim=2, h_dim=3, weight_scale=0.0)
    v = torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 0.0]])
    energy.fit(v.split(2))
    torch.testing.assert_close(energy.v_offset, torch.tensor([0.8, 0.4]))
    torch.testing.assert_close(energy.visible_mean(torch.ones(3)), torch.tensor([0.8, 0.4]))
    energy.fit([1 - v])
    torch.testing.assert_close(energy.v_offset, torch.tensor([0.8, 0.4]))


def test_offsets_do_not_change_the_family(energy):
    """A model with other offsets has the same energies up to a constant, if its biases are moved accordingly."""
    _, _, before = joint(energy)
    W = energy.coupling()
    latent = energy.c if isinstance(energy, eb.BernoulliRBM) else energy.c1
    latent += (torch.tensor([0.3, 0.9]) - energy.v_offset) @ W
    energy.v_offset.copy_(torch.tensor([0.3, 0.9]))
    change = joint(energy)[2] - before
    torch.testing.assert_close(change, change[:1].expand(len(change)))


def test_too_many_units_are_refused():
    with pytest.raises(eb.ConfigError, match=r"30 binary units cannot be enumerated.*importance sampling"):
        eb.BernoulliRBM(v_dim=30, h_dim=40).log_partition()


# --- the mean-field posterior of a DBM ----------------------------------------------------------------------


def dbm(n_mean_field=60):
    torch.manual_seed(3)
    energy = eb.DeepBoltzmannMachine(v_dim=D, h_dim=5, h1_dim=2, n_mean_field=n_mean_field)
    return make_binary(energy).requires_grad_(False)


def bound(energy, v, mu):
    """Compute E_q[log p~(v, h)] + H(q) by a sum over all h."""
    h = binary(energy.h_dim)
    log_q = (h * mu.log() + (1 - h) * (1 - mu).log()).sum(1)
    return log_q.exp() @ (-energy.energy(v.expand(len(h), -1), h) - log_q)


def test_the_mean_field_posterior_maximises_the_bound_of_the_log_density():
    energy = dbm()
    v, F = visible(energy)
    found = -energy.free_energy_bound(v)
    for row in range(len(v)):
        mu = energy.latent_mean(v[row : row + 1])[0].requires_grad_()
        value = bound(energy, v[row], mu)
        torch.testing.assert_close(found[row], value.detach())
        (slope,) = torch.autograd.grad(value, mu)
        assert slope.abs().max() < 1e-9
        assert value < -F[row]
        for other in torch.rand(20, energy.h_dim):
            assert bound(energy, v[row], other) < value


def test_each_mean_field_update_raises_the_bound():
    v = binary(D)
    bounds = torch.stack([-dbm(n).free_energy_bound(v) for n in (1, 2, 3, 5, 9)])
    assert (bounds.diff(dim=0) > 0).all()


def test_the_bound_is_exact_where_the_latents_are_independent():
    energy = dbm()
    energy.W2.zero_()
    v, F = visible(energy)
    torch.testing.assert_close(energy.free_energy_bound(v), F)
    assert math.isfinite(float(energy.log_partition()))


def test_a_dbm_begins_with_the_distribution_of_an_rbm():
    """Compare log p(v) of a DBM without second couplings with that of the RBM, for all v, by enumeration."""
    torch.manual_seed(4)
    rbm = make_binary(eb.BernoulliRBM(v_dim=D, h_dim=3))
    dbm = eb.DeepBoltzmannMachine(v_dim=D, h_dim=5, h1_dim=3, weight_scale=0.0)
    dbm.begin_with(rbm)
    v = binary(D)
    # the bound is exact, because the latents of this DBM are independent given v
    found = -dbm.free_energy_bound(v) - dbm.log_partition()
    torch.testing.assert_close(found, -rbm.free_energy(v) - rbm.log_partition())
    assert dbm.fitted
    with pytest.raises(ConfigError, match="units"):
        dbm.begin_with(eb.BernoulliRBM(v_dim=D, h_dim=2))
