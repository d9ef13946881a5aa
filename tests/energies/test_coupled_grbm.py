"""Tests of the coupled GRBM: exact samples of its dependent latents, its divergences, and its metrics."""

import pytest
import torch

import eblvm_lit as eb
from cases import H_DIM, V_DIM, binary, randomise
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.energies import coupled_grbm
from eblvm_lit.evaluation.latent_distributions import closed_divergences, latent_distribution
from eblvm_lit.evaluation.posterior_divergence import PosteriorDivergence
from eblvm_lit.evaluation.studies.score_bias import ScoreBias
from eblvm_lit.runs.instantiate import instantiate
from helpers.stand_in import StandIn

pytestmark = pytest.mark.usefixtures("float64")


def make(m=H_DIM, scale=0.8, **options):
    return randomise(eb.CoupledGRBM(v_dim=V_DIM, h_dim=m, **options), scale)


def probabilities(energy, v):
    """Compute p(h|v) from values of E only, shape (S, B)."""
    h = binary(energy.h_dim).unsqueeze(1).expand(-1, len(v), -1)
    return (-energy.energy(v, h)).softmax(0)


def test_states_and_their_probabilities():
    energy = make(5)
    v = torch.randn(6, V_DIM)
    states = energy.latent_states()
    log_p = energy.latent_log_probs(v)
    assert sorted(states.tolist()) == sorted(binary(5).tolist())
    expected = energy.free_energy(v) - energy.energy(v, states.unsqueeze(1).expand(-1, 6, -1))
    torch.testing.assert_close(log_p, expected, rtol=1e-11, atol=1e-11)


def test_each_state_is_drawn_by_uniforms_of_its_probability():
    # The uniform random numbers that give one latent state form a box. The sides of the box are the conditional
    # probabilities of the bits, which are sums over p(h|v).
    energy = make(4)
    v = torch.randn(6, V_DIM)
    states = binary(4)
    p = probabilities(energy, v)
    for h in states:
        low = torch.zeros(6, 4)
        high = torch.ones(6, 4)
        for j in range(4):
            earlier = (states[:, :j] == h[:j]).all(-1)
            on = p[earlier & (states[:, j] == 1)].sum(0) / p[earlier].sum(0)
            (high if h[j] else low)[:, j] = on
        torch.testing.assert_close((high - low).prod(-1), p[(states == h).all(-1)].squeeze(0))
        for u in (0.5 * (low + high), low + 1e-9, high - 1e-9):
            assert torch.equal(energy.draw_latent(v, u), h.expand(6, 4))
        outside = torch.where(h.bool(), high + 1e-9, low - 1e-9)
        for j in range(4):
            u = (0.5 * (low + high)).clone()
            u[:, j] = outside[:, j]
            assert (energy.draw_latent(v, u)[:, j] == 1 - h[j]).all()


def test_draws_of_particles_are_those_of_rows_and_never_impossible():
    energy = make(4)
    v = torch.randn(6, V_DIM)
    u = energy.latent_noise((2, 5, 6), v, keyed_generator(0))
    h = energy.draw_latent(v, u)
    assert h.shape == u.shape == (2, 5, 6, 4)
    assert torch.equal(h[1, 3], energy.draw_latent(v, u[1, 3]))
    assert torch.equal(h[:, :, 2:3], energy.draw_latent(v[2:3], u[:, :, 2:3]))
    with torch.no_grad():  # with such biases, some probabilities underflow
        energy.c.copy_(torch.tensor([-2000.0, 2000.0, 0.0, -2000.0]))
    ends = torch.stack([torch.zeros(6, 4), torch.full((6, 4), 1 - 2**-53)])
    drawn = energy.draw_latent(v, ends)
    assert torch.equal(drawn[..., [0, 1, 3]], torch.tensor([0.0, 1.0, 0.0]).expand(2, 6, 3))
    assert torch.equal(drawn[..., 2], torch.tensor([1.0, 0.0]).unsqueeze(1).expand(2, 6))


def test_the_size_of_blocks_of_examples_changes_no_result(monkeypatch):
    energy = make(4)
    v = torch.randn(7, V_DIM)
    u = torch.rand(3, 7, 4)
    of_v = ("free_energy", "latent_mean", "score", "score_divergence")
    calls = {**dict.fromkeys(of_v, (v,)), "draw_latent": (v, u)}
    whole = {name: getattr(energy, name)(*args) for name, args in calls.items()}
    for elements in (1, 3 * 2**4):  # blocks of one row, and blocks of three rows
        monkeypatch.setattr(coupled_grbm, "ELEMENTS", elements)
        for name, args in calls.items():
            torch.testing.assert_close(getattr(energy, name)(*args), whole[name])


def test_kl_of_independent_bits_is_exact():
    energy = make(5)
    q = randomise(eb.BernoulliPosterior(v_dim=V_DIM, h_dim=5))
    v = torch.randn(130, V_DIM)
    # E is linear in each bit, and q has independent bits. So the mean of E under q is E at the means of the bits.
    mean = q.mean(v)
    entropy = torch.distributions.Bernoulli(mean).entropy().sum(-1)
    expected = energy.energy(v, mean) - entropy - energy.free_energy(v)
    found = closed_divergences(latent_distribution(q, v), latent_distribution(energy, v))
    assert list(found) == ["posterior_kl"]
    torch.testing.assert_close(found["posterior_kl"], expected, rtol=1e-11, atol=1e-11)
    assert expected.min() > 1e-2
    metric = PosteriorDivergence(n_particles=1).compute(StandIn(energy=energy, posterior=q), v, keyed_generator(0))
    assert metric == {"posterior_kl": pytest.approx(expected.mean().item(), abs=1e-12)}
    grads = [torch.autograd.grad(x.sum(), [*q.parameters(), energy.pairs]) for x in (found["posterior_kl"], expected)]
    torch.testing.assert_close(*grads)


def test_the_coupled_grbm_is_no_grbm_where_independent_latents_are_needed():
    energy = make()
    v = torch.randn(6, V_DIM)
    method = StandIn(energy=energy, posterior=eb.BernoulliPosterior(v_dim=V_DIM, h_dim=H_DIM))
    assert not ScoreBias().applies(method, None)
    # log Z must not be estimated by the annealing for GRBMs, which need independent latents. These latents are
    # enumerated even if max_enumerated is 0.
    log_z = energy.log_partition().item()
    assert eb.exact_log_partition(energy, 0) == pytest.approx(log_z)
    metric = eb.LogLikelihood(max_enumerated=0)
    expected = -energy.free_energy(v).mean().item() - log_z
    assert metric.compute(method, v, keyed_generator(0)) == {"log_likelihood": pytest.approx(expected)}


@pytest.mark.parametrize("m", [1, 17])
def test_too_few_or_too_many_latents_are_refused(m):
    with pytest.raises(
        eb.ConfigError, match=f"model.h_dim .CoupledGRBM. must be (gr|l).* {2 if m < 2 else 16}, not {m}"
    ):
        instantiate({"_target_": "eblvm_lit.energies.coupled_grbm.CoupledGRBM", "v_dim": 2, "h_dim": m}, "model")
