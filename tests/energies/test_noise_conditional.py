"""Tests of energies at every noise level: their free energies, their scores, and their own log Z."""

import math

import pytest
import torch

import eblvm_lit as eb
from cases import H_DIM, at_every_level, binary, grbm_at_every_level, hermite, randomise
from eblvm_lit.core.noise_levels import NoisedNormal, NoiseRange, join_level
from eblvm_lit.energies.noise_conditional import NoiseConditionalFreeEnergy
from eblvm_lit.posteriors.at_every_level import NoiseConditionalPosterior
from eblvm_lit.scores.bilevel import BilevelScore
from eblvm_lit.scores.variational import ControlledVaES

pytestmark = pytest.mark.usefixtures("float64")


def examples():
    return join_level(torch.randn(6, 3), torch.linspace(-4.0, 3.0, 6))


def enumerated(energy, w):
    h = binary(H_DIM).unsqueeze(1).expand(-1, len(w), -1)
    return -(-energy.energy(w, h)).logsumexp(0)


def test_free_energy_and_its_derivatives_are_those_of_all_latents_summed():
    energy = randomise(grbm_at_every_level(4))
    w = examples()
    torch.testing.assert_close(energy.free_energy(w), enumerated(energy, w))
    expected = -torch.func.grad(lambda x: enumerated(energy, x).sum())(w)
    torch.testing.assert_close(energy.score(w), expected)
    assert expected[:, -1].abs().min() > 1e-3  # the derivative with respect to the level is not zero by chance


def test_the_energy_of_noised_normal_data_is_not_rounded_by_autocast():
    energy = randomise(at_every_level(65).float())
    w = join_level(torch.randn(5, 64), torch.zeros(5)).float()
    with torch.autocast("cpu", torch.bfloat16):
        features = energy.features(w)
    torch.testing.assert_close(features[:, -1], energy.reference.energy(w))


def exact_posterior(energy):
    """Return the posterior q(h|w) that equals p(h|w) of a GRBM at every noise level."""
    q = eb.BernoulliPosterior(v_dim=4, h_dim=H_DIM)
    with torch.no_grad():
        q.linear.weight.copy_(energy.inner.coupling().T)
        q.linear.bias.copy_(energy.inner.c)
    return NoiseConditionalPosterior(posterior=q, noise_range=NoiseRange(mean=0.3, std=1.4))


@pytest.mark.parametrize("seed", [0, 1])
def test_scores_with_the_exact_posterior_have_the_exact_derivative_in_the_level(seed):
    energy = randomise(grbm_at_every_level(4))
    q = exact_posterior(energy)
    w = examples()
    noise = q.noise((), w, torch.Generator().manual_seed(seed))
    exact = energy.score(w)
    torch.testing.assert_close(BilevelScore(energy, q, w, noise)(w), exact)
    h = q.sample_given(q.distribution_params(w), noise).unsqueeze(0)
    torch.testing.assert_close(ControlledVaES()(energy, q, w, h), exact)


def test_at_one_level_energy_and_score_are_those_of_the_noised_data():
    for make in (at_every_level, grbm_at_every_level):
        energy = randomise(make(4))
        v = torch.randn(5, 3)
        w = join_level(v, torch.full((5,), math.log(0.2)))
        h = binary(H_DIM).unsqueeze(1).expand(-1, 5, -1)
        torch.testing.assert_close(energy.at_level(0.2).energy(v, h), energy.energy(w, h))
        torch.testing.assert_close(energy.at_level(0.2).at(v)(h), energy.energy(w, h))
    torch.testing.assert_close(energy.at_level(0.2).score(v), energy.score(w)[:, :3])


def test_energy_is_the_reference_plus_that_of_the_scaled_inputs():
    energy = randomise(at_every_level(4))
    w = examples()
    h = torch.randn(5, 6, H_DIM)
    std = (1.4**2 + w[:, 3:].exp()).sqrt()
    x = torch.cat([(w[:, :3] - 0.3) / std, (w[:, 3:] - math.log(1.4**2)) / 4], 1)
    normal = torch.distributions.Normal(0.3, std).log_prob(w[:, :3]).sum(1)
    torch.testing.assert_close(energy.energy(w, h), energy.inner.energy(x, h) - normal)


def test_own_log_partition_is_the_integral_of_the_density():
    inner = randomise(eb.MLPEnergy(v_dim=3, widths=[5, 4]), 0.3)
    energy = NoiseConditionalFreeEnergy(energy=inner, v_shape=[2], noise_range=NoiseRange(mean=0.3, std=1.4))
    t = 0.6
    (z, weights) = hermite(60, 2)
    reference = NoisedNormal(NoiseRange(mean=0.3, std=1.4))
    w = join_level(0.3 + math.sqrt(1.4**2 + t) * z, torch.full((len(z),), math.log(t)))
    exact = (weights * (reference.energy(w) - energy.free_energy(w)).exp()).sum().log()
    found = energy.own_log_partition(t, n=100_000)
    # the standard error of the mean of exp(-F') over 100,000 points is below 0.003 of Z
    assert abs(found - exact) < 0.01
    assert found == energy.own_log_partition(t, n=100_000)


def test_an_energy_of_another_size_is_refused():
    with pytest.raises(eb.ConfigError, match="a vector of 3 numbers"):
        NoiseConditionalFreeEnergy(energy=eb.MLPEnergy(v_dim=2, widths=[5]), v_shape=[2], noise_range=NoiseRange())
