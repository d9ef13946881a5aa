"""Tests of harmoniums: the marginal and the posterior mean against sums and quadrature over the latents."""

import math

import pytest
import torch

from cases import H_DIM, binary, harmonium, harmonium_at_every_level, hermite, randomise
from eblvm_lit.core.noise_levels import NoiseRange, join_level
from eblvm_lit.energies.inner_product import InnerProductHarmonium
from eblvm_lit.energies.noise_conditional import NoiseConditionalExactLatents
from eblvm_lit.methods.parts import MethodParts
from eblvm_lit.networks.noise_conditional_mixer import NoiseConditionalMixer

pytestmark = pytest.mark.usefixtures("float64")


def states(continuous):
    """Return all latents (S, H) and their log-weights (S,), whose weighted sum is the integral over h or the sum."""
    if not continuous:
        return binary(H_DIM), torch.zeros(2**H_DIM)
    (x, w) = hermite(30, H_DIM)
    return x, w.log() + 0.5 * x.square().sum(-1) + 0.5 * H_DIM * math.log(2 * math.pi)


@pytest.mark.parametrize("continuous", [True, False])
def test_the_marginal_and_the_posterior_mean_are_those_of_the_joint_energy(continuous):
    energy = randomise(harmonium(3, continuous), 0.8)
    v = torch.randn(6, 3)
    h, log_weight = states(continuous)
    log_p = log_weight.unsqueeze(1) - energy.energy(v, h.unsqueeze(1).expand(-1, 6, -1))
    torch.testing.assert_close(energy.free_energy(v), -log_p.logsumexp(0), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(energy.latent_mean(v), log_p.softmax(0).T @ h, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("continuous", [True, False])
def test_the_score_in_space_and_in_the_level_is_the_mean_of_that_of_the_joint_energy(continuous):
    energy = randomise(harmonium_at_every_level(3, continuous), 0.6)
    w = join_level(torch.randn(5, 2), torch.linspace(-2.0, 2.0, 5))
    h, log_weight = states(continuous)
    h = h.unsqueeze(1).expand(-1, 5, -1)
    posterior = (log_weight.unsqueeze(1) - energy.energy(w, h)).softmax(0).detach()
    slope = torch.func.jacrev(lambda w: (posterior * energy.energy(w, h)).sum(0))(w)
    torch.testing.assert_close(energy.score(w), -torch.einsum("iij->ij", slope), rtol=1e-8, atol=1e-8)


def test_latents_at_a_level_are_those_of_the_scaled_inputs():
    energy = randomise(harmonium_at_every_level(3), 0.8)
    v = torch.randn(5, 2)
    x = torch.cat([(v - 0.3) / math.sqrt(1.4**2 + 0.2), torch.full((5, 1), math.log(0.2 / 1.4**2) / 4)], 1)
    expected = energy.inner.latent_mean(x)
    torch.testing.assert_close(energy.at_level(0.2).latent_mean(v), expected)
    assert energy.of_data().level == energy.noise_range.t_min
    # Metrics and figures of latents use them when there is no posterior.
    encoding = MethodParts(energy=energy.at_level(0.2)).encoding
    assert encoding.h_dim == H_DIM
    torch.testing.assert_close(encoding(v), expected)


def test_latents_of_images_are_determined_more_exactly_at_less_noise():
    network = NoiseConditionalMixer(v_shape=[1, 4, 4], width=5, dense_width=7, n_rounds=2, n_kept=3, fine_width=4)
    inner = InnerProductHarmonium(network=network, h_dim=H_DIM)
    levels = NoiseRange(mean=0.3, std=1.4)
    energy = NoiseConditionalExactLatents(energy=inner, v_shape=[1, 4, 4], noise_range=levels)
    w = join_level(0.3 + torch.randn(6, 16), torch.linspace(-4.0, 3.0, 6))
    x = energy.reference.inputs(w)
    # Before training the energy is near its reference: A is small, and a and the image f are zero.
    assert 0 < (energy.free_energy(w) - energy.reference.energy(w)).abs().max() < 0.1 * 16
    randomise(inner, 0.3)
    f, features = network(x)
    of_v = -0.5 * (-2 * x[:, -1]).exp() * (x[:, :-1] * f).sum(1) + 4 * inner.head.free(features).squeeze(1)
    coupled = 4 * ((features @ inner.couple.weight.T + inner.couple.bias) / 4).tanh()
    precision = 4 * (-2 * x[:, -1]).exp()
    torch.testing.assert_close(energy.latent_mean(w), coupled)
    expected = energy.reference.energy(w) + of_v - 0.5 * precision * coupled.square().sum(1)
    torch.testing.assert_close(energy.free_energy(w), expected)
    # The posterior of the latents is the normal distribution whose precision rises as the noise falls.
    h = torch.randn(5, 6, H_DIM)
    posterior = torch.distributions.Normal(coupled, precision.rsqrt().unsqueeze(1))
    torch.testing.assert_close(energy.free_energy(w) - energy.energy(w, h), posterior.log_prob(h).sum(-1))


@pytest.mark.parametrize("n_bits", [1, 3])
def test_bits_of_images_are_summed_out(n_bits):
    network = NoiseConditionalMixer(v_shape=[1, 4, 4], width=5, dense_width=7, n_rounds=1, n_kept=3, fine_width=4)
    energy = randomise(InnerProductHarmonium(network=network, h_dim=n_bits, continuous=False), 0.3)
    x = join_level(torch.randn(6, 16), torch.linspace(-1.0, 1.0, 6))
    h = binary(n_bits)
    log_p = -energy.energy(x, h.unsqueeze(1).expand(-1, 6, -1))
    torch.testing.assert_close(energy.free_energy(x), -log_p.logsumexp(0))
    torch.testing.assert_close(energy.latent_mean(x), log_p.softmax(0).T @ h)


def test_latents_do_not_lower_the_energy_without_a_bound_where_features_grow():
    energy = randomise(harmonium(3), 2.0)
    v = 1e4 * torch.randn(100, 3)
    assert energy.latent_mean(v).abs().max() <= 4
    (e, _, _) = energy.terms(v)
    assert (e - energy.free_energy(v)).max() <= 0.5 * 16 * H_DIM
