"""Tests of contrastive divergence: its gradient, persistent chains, and its validation loss."""

from contextlib import nullcontext

import pytest
import torch

import eblvm_lit as eb
from cases import SUMMED, V_DIM, binary, enumerated_free_energy, make_binary, make_gaussian_latent, randomise
from eblvm_lit.core.functional import plain_autograd
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.samplers.chains.gibbs_chain import GibbsChain
from eblvm_lit.samplers.chains.langevin_chain import LangevinChain
from helpers import iterating
from helpers.annealing import Hidden

every_energy = pytest.mark.parametrize("energy_case", SUMMED, ids=str)
every_backend = pytest.mark.parametrize("backend", [nullcontext, plain_autograd])


def make(energy, chain, n_chains=None, optimizer=None, **options):
    return eb.ContrastiveDivergence(
        energy=energy, chain=chain, n_chains=n_chains, optimizer=optimizer or eb.SGD(lr=0.1), seed=1, **options
    )


def gradient(method, v, seed=0, buffers=None):
    """Return the gradient of one iteration, the buffers at its end and the noise that it used."""
    start = iterating.start(method)
    start = start if buffers is None else start._replace(buffers=buffers)
    noise = method.draw_noise(v, keyed_generator(seed))
    (found,) = iterating.found(method, start, v, noise)["model"]
    end, _ = iterating.run(method, start, v, noise)
    return found._replace(buffers=end.buffers), noise


@every_backend
@every_energy
def test_gradient_is_that_of_enumerated_free_energies_at_fixed_ends_of_gibbs_chains(energy_case, backend, float64):
    energy = energy_case.make()
    v = torch.randn(6, V_DIM)
    with backend():
        found, noise = gradient(make(energy, GibbsChain(n_steps=3)), v)
    with torch.no_grad():
        h = energy.draw_latent(v, noise["positive"])
        for i in range(3):
            mean = energy.visible_mean(h)
            noise_of_v = noise["negative"]["v"][i]
            bits = energy.binary_visible
            v_minus = (noise_of_v < mean).double() if bits else mean + energy.visible_std() * noise_of_v
            h = energy.draw_latent(v_minus, noise["negative"]["h"][i])
    of_data, of_model = (enumerated_free_energy(energy_case, energy, x).mean() for x in (v, v_minus))
    iterating.assert_descends(found, of_data - of_model, energy)
    assert found.buffers == {}


@every_backend
@pytest.mark.parametrize("uniform_start", [None, [-1.0, 4.0]])
def test_langevin_gradient_of_an_energy_with_a_free_energy(uniform_start, backend, float64):
    energy = randomise(eb.GRBM(v_dim=V_DIM, h_dim=3))
    v = torch.randn(6, V_DIM)
    with backend():
        chain = LangevinChain(n_steps=4, step_size=0.3, uniform_start=uniform_start)
        found, noise = gradient(make(energy, chain), v)
    x = noise["negative"]["v_start"] if uniform_start else v
    assert not uniform_start or -1 < x.min() < x.max() < 4
    for eps in noise["negative"]["v"]:
        x = (x + 0.15 * energy.score(x) + 0.3**0.5 * eps).detach()
    iterating.assert_descends(found, energy.free_energy(v).mean() - energy.free_energy(x).mean(), energy)


@every_backend
def test_langevin_gradient_of_an_energy_of_v_and_h_alone(backend, float64):
    energy = Hidden(make_gaussian_latent())
    model = energy.model
    v = torch.randn(6, V_DIM)
    chain = LangevinChain(n_steps=4, step_size=0.3, noise_std=0.2, n_latent_steps=5)
    with backend():
        found, noise = gradient(make(energy, chain), v)

    def slopes(x, h):  # dE/dv and dE/dh, derived by hand
        return (x - model.b) * (-2 * model.log_std).exp() - h @ model.W.T, h - model.c - x @ model.W

    h = noise["positive"]["h"]
    for eps in noise["positive"]["steps"]:
        h = h - 0.15 * slopes(v, h)[1] + 0.2 * eps
    x = v
    g = h
    for eps_v, eps_h in zip(noise["negative"]["v"], noise["negative"]["h"], strict=True):
        slope_v, slope_h = slopes(x, g)
        x = x - 0.15 * slope_v + 0.2 * eps_v
        g = g - 0.15 * slope_h + 0.2 * eps_h
    loss = energy.energy(v, h.detach()).mean() - energy.energy(x.detach(), g.detach()).mean()
    iterating.assert_descends(found, loss, energy)


def test_persistent_chains_from_noise_start_at_noise_in_the_first_iteration_only(float64):
    energy = Hidden(make_gaussian_latent())
    method = make(energy, LangevinChain(n_steps=1, step_size=0.1, uniform_start=[50.0, 60.0]), n_chains=5)
    v = torch.randn(3, V_DIM)
    first, noise = gradient(method, v)
    start = {name: noise["negative"][f"{name}_start"] for name in ("v", "h")}
    assert start["v"].min() > 50
    assert start["h"].abs().max() < 6
    moved = method.chain.run(energy, start, noise["negative"])
    for name in ("v", "h"):
        torch.testing.assert_close(first.buffers[f"chain_{name}"], moved[name])


LANGEVIN = LangevinChain(n_steps=2, step_size=0.1)
CHAINS = {
    "gibbs": (lambda: randomise(eb.GRBM(v_dim=V_DIM, h_dim=3)), GibbsChain(n_steps=2), ["h"]),
    "langevin": (lambda: randomise(eb.GRBM(v_dim=V_DIM, h_dim=3)), LANGEVIN, ["v"]),
    "joint langevin": (lambda: Hidden(make_gaussian_latent()), LANGEVIN, ["v", "h"]),
}


@pytest.mark.parametrize("kind", CHAINS)
def test_persistent_chains_start_at_the_first_minibatch_and_continue_from_their_last_states(kind, float64):
    build, chain, names = CHAINS[kind]
    energy = build()
    method = make(energy, chain, n_chains=6)
    assert sorted(method.persistent_buffers()) == sorted(["chain_started", *(f"chain_{name}" for name in names)])
    v = torch.randn(6, V_DIM)
    w = torch.randn(6, V_DIM) + 5
    short = torch.randn(4, V_DIM) - 5
    # In the first iteration the chains start at the minibatch, as in CD.
    first, noise = gradient(method, v, 0)
    anew, _ = gradient(make(energy, chain), v, 0)
    torch.testing.assert_close(first.grads, anew.grads)
    assert first.buffers["chain_started"]
    # Later iterations continue all chains from their last states, whatever the minibatch is, and also if it is a short
    # one.
    buffers = first.buffers
    for batch, seed in ((w, 1), (short, 2)):
        after, noise = gradient(method, batch, seed, buffers)
        state = {name: buffers[f"chain_{name}"] for name in names}
        moved = chain.run(energy, state, noise["negative"])
        for name in names:
            torch.testing.assert_close(after.buffers[f"chain_{name}"], moved[name].detach())
            assert not torch.equal(after.buffers[f"chain_{name}"], buffers[f"chain_{name}"])
        buffers = after.buffers


def test_chains_start_at_repeated_rows_where_the_minibatch_has_fewer_rows_than_chains(float64):
    energy = make_gaussian_latent()
    method = make(energy, GibbsChain(n_steps=1), n_chains=7)
    v = torch.randn(3, V_DIM)
    found, noise = gradient(method, v)
    h = energy.draw_latent(v, noise["positive"])[[0, 1, 2, 0, 1, 2, 0]]
    v_minus = energy.draw_visible(h, noise["negative"]["v"][0]).detach()
    expected = energy.draw_latent(v_minus, noise["negative"]["h"][0]).detach()
    torch.testing.assert_close(found.buffers["chain_h"], expected)


def test_an_iteration_moves_theta_and_chains_and_a_validation_moves_nothing(float64):
    method = make(randomise(eb.GRBM(v_dim=V_DIM, h_dim=3)), GibbsChain(n_steps=1), n_chains=6)
    v = torch.randn(6, V_DIM)
    state = {name: value.clone() for name, value in method.state_dict().items()}
    method.validation_loss(v, keyed_generator(0))
    assert all(torch.equal(value, state[name]) for name, value in method.state_dict().items())
    method.run_iteration(iterating.start(method), v, method.draw_noise(v, keyed_generator(0)))
    assert all(not torch.equal(value, state[name]) for name, value in method.state_dict().items())
    assert {"chain_started", "chain_h"} < set(state)


def test_validation_loss_is_the_error_of_one_step(float64):
    energy = randomise(eb.GRBM(v_dim=V_DIM, h_dim=3))
    v = torch.randn(6, V_DIM)
    found = make(energy, GibbsChain(n_steps=4), n_chains=2).validation_loss(v, keyed_generator(5))
    u = torch.rand(6, 3, generator=keyed_generator(5))
    h = (u < (energy.c + v @ energy.W).sigmoid()).double()
    expected = (v - energy.b - (2 * energy.log_std).exp() * (h @ energy.W.T)).square().sum(-1)
    torch.testing.assert_close(found, expected)

    langevin = LangevinChain(n_steps=4, step_size=0.3)
    found = make(energy, langevin).validation_loss(v, keyed_generator(5))
    torch.testing.assert_close(found, (0.15 * energy.score(v)).square().sum(-1))

    joint = Hidden(eb.GaussianLatentModel(v_dim=V_DIM, h_dim=3))
    found = make(joint, langevin).validation_loss(v, keyed_generator(5))
    h = langevin.start(joint, v, langevin.start_noise(joint, v, keyed_generator(5)))["h"]
    x = v.clone().requires_grad_()
    (slope,) = torch.autograd.grad(joint.energy(x, h.detach()).sum(), x)
    torch.testing.assert_close(found, (0.15 * slope).square().sum(-1))


def test_the_validation_loss_of_a_draw_adds_the_variance_of_v(float64):
    energy = randomise(eb.GRBM(v_dim=V_DIM, h_dim=3))
    v = torch.randn(1, V_DIM).expand(40_000, V_DIM)
    mean, draw = (make(energy, GibbsChain(n_steps=1), validation=kind) for kind in ("mean", "draw"))
    found = [method.validation_loss(v, keyed_generator(5)) for method in (mean, draw)]
    variance = (2 * energy.log_std).exp().sum()
    difference = (found[1] - found[0]).mean()
    spread = (found[1] - found[0]).std() / len(v) ** 0.5
    assert (difference - variance).abs() < 5 * spread < 0.2 * variance
    langevin = LangevinChain(n_steps=4, step_size=0.3)
    methods = [make(energy, langevin, validation=kind) for kind in ("mean", "draw")]
    found = [method.validation_loss(v, keyed_generator(5)).mean() for method in methods]
    # The last Langevin step of size a adds noise of variance a to each coordinate of v.
    torch.testing.assert_close(found[1] - found[0], torch.tensor(0.3 * V_DIM), rtol=0.1, atol=0)


def dbm():
    return make_binary(eb.DeepBoltzmannMachine(v_dim=V_DIM, h_dim=5, h1_dim=2, n_mean_field=60))


def test_the_gradient_of_a_dbm_is_that_of_the_mean_field_bound_and_of_moved_chains(float64):
    """The positive phase lowers E_q[E(v, h)] - H(q) at the mean-field optimum, where q does not change to first
    order."""
    energy = dbm()
    v = binary(V_DIM)
    method = make(energy, GibbsChain(n_steps=2), n_chains=7)
    chains = {
        "chain_started": torch.tensor(True),
        "chain_h": torch.randint(0, 2, (7, 5), generator=keyed_generator(2)).double(),
    }
    found, noise = gradient(method, v, buffers=chains)
    h = chains["chain_h"]
    for i in range(2):
        x = (noise["negative"]["v"][i] < energy.visible_mean(h)).double()
        h = energy.move_latent(x, h, noise["negative"]["h"][i])
    assert torch.equal(found.buffers["chain_h"], h)
    bound = energy.free_energy_bound(v).mean() - energy.energy(x, h).mean()  # autograd also differentiates mu
    for name, slope in iterating.gradient_of(bound, energy).items():
        torch.testing.assert_close(found.grads[name], slope, atol=1e-9, rtol=1e-9)


def test_the_negative_phase_of_a_dbm_has_the_gradient_of_log_z_in_the_mean(float64):
    energy = dbm()
    n = 60_000
    x, y = energy.sample_layers(n, keyed_generator(4))
    h = torch.cat([x, y[:, V_DIM:]], 1)
    end = GibbsChain(n_steps=1).run(energy, {"h": h}, GibbsChain(n_steps=1).noise(energy, n, h, keyed_generator(5)))
    exact = iterating.gradient_of(energy.log_partition(), energy)
    for name, slope in iterating.gradient_of(-energy.energy(end["v"], end["h"]).mean(), energy).items():
        torch.testing.assert_close(slope, exact[name], atol=5 * 0.5 / n**0.5, rtol=0)


@pytest.mark.parametrize("model", [dbm, lambda: make_binary(eb.BernoulliRBM(v_dim=V_DIM, h_dim=3))])
def test_langevin_chains_refuse_bits(model):
    with pytest.raises(eb.ConfigError, match=r"chain=langevin needs gradients with respect to v.*bits.*pcd"):
        make(model(), LANGEVIN)
