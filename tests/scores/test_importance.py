"""Tests of the score that is estimated by importance sampling."""

import pytest
import torch

import eblvm_lit as eb
from cases import ENERGIES, H_DIM, V_DIM, binary, randomise
from eblvm_lit.core.seeding import keyed_generator
from helpers import iterating

pytestmark = pytest.mark.usefixtures("float64")
BINARY = [case for case in ENERGIES if case.binary and case.nodes]


@pytest.mark.parametrize("case", BINARY, ids=str)
def test_importance_score_over_all_latents_is_the_score(case):
    energy = case.make()
    v = torch.randn(5, V_DIM)
    score = eb.ImportanceScore(energy, binary(H_DIM).unsqueeze(1).expand(-1, 5, -1))
    torch.testing.assert_close(score.free_energy(v), energy.free_energy(v), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(score(v), energy.score(v), rtol=1e-10, atol=1e-10)


def test_importance_draws_fresh_fair_bits_for_each_v():
    energy = eb.GRBM(v_dim=V_DIM, h_dim=H_DIM)
    v = torch.randn(300, V_DIM)
    h = eb.Importance(n_particles=7).noise(energy, None, v, keyed_generator(0))
    assert h.shape == (7, 300, H_DIM)
    assert set(h.unique().tolist()) == {0.0, 1.0}
    assert abs(h.mean() - 0.5) < 4 * 0.5 / h.numel() ** 0.5
    assert (h[:, 0] != h[:, 1]).any()


def test_importance_score_trains_theta_through_all_of_it():
    energy = randomise(eb.GRBM(v_dim=V_DIM, h_dim=H_DIM))
    v = torch.randn(6, V_DIM)
    score = eb.Importance(n_particles=5)
    objective = eb.DSM(noise_std=0.3)
    bits = score.noise(energy, None, v, keyed_generator(0))
    noise = {"eps": torch.randn(6, V_DIM)}

    def loss(theta):
        return objective.loss(score.function(eb.bind(energy, theta), None, v, bits), v, noise).mean()

    weights = torch.softmax(-energy.energy(v, bits), 0)
    each = [-torch.func.grad(lambda x, h=h: energy.energy(x, h).sum())(v) for h in bits]
    s = weights.unsqueeze(-1) * torch.stack(each)
    expected = iterating.gradient_of(0.5 * (s.sum(0) + noise["eps"] / 0.3).square().sum(-1).mean(), energy)
    torch.testing.assert_close(torch.func.grad(loss)(eb.params_of(energy)), expected)


def test_real_latents_are_refused():
    with pytest.raises(eb.ConfigError, match="continuous"):
        eb.Importance().check(eb.GaussianLatentModel(v_dim=2, h_dim=3))
