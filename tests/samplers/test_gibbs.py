"""Tests of Gibbs chains against the exact moments of small models.

The tests of all dynamics in test_dynamics.py also apply to Gibbs chains.
"""

import math

import pytest
import torch

import eblvm_lit as eb
from eblvm_lit.samplers.sample_noise import SampleNoise
from eblvm_lit.samplers.sampler import with_latents
from helpers.models import LatentOnly, check_moments, exact_moments, generator, random_grbm

N_CHAINS = 10_000


def ends(model, sampler, n=N_CHAINS):
    """Return v and h after the last sweep, and v drawn given this h."""
    noise = SampleNoise(1, range(n))
    chains = with_latents(model, sampler.start((model.event_shape), noise, dtype=torch.float64))
    *_, (v, h), (end, _) = sampler.trajectory(chains, noise)
    return v, h, end


@pytest.mark.parametrize("parametrisation", ["code", "paper"])
def test_gibbs_hits_the_exact_moments_of_a_grbm(parametrisation):
    model = random_grbm(3, 4, parametrisation, seed=4).requires_grad_(False)
    v, h, end = ends(model, eb.Gibbs(n_steps=30))
    mean, covariance = exact_moments(model)
    # Visible and latent variables must be correlated, because otherwise the test would check nothing.
    assert covariance[:3, 3:].abs().max() > 0.1
    assert ((h == 0) | (h == 1)).all()
    for visible in (v, end):
        check_moments(torch.cat([visible, h], dim=1), mean, covariance)


def test_gibbs_hits_the_marginal_of_the_gaussian_latent_model():
    model = eb.GaussianLatentModel(v_dim=2, h_dim=3, weight_scale=1.5).double().requires_grad_(False)
    g = generator(1)
    for p in (model.b, model.c, model.log_std):
        p.copy_(0.3 * torch.randn(p.shape, generator=g, dtype=p.dtype))
    truth = model.marginal()
    v = eb.Gibbs(n_steps=60).sample(model, N_CHAINS, g)
    check_moments(v, truth.mean, truth.covariance_matrix)


def test_one_sweep_starts_from_mean_latents_of_uniform_visibles():
    """Check the moments of h1 after one sweep with W = sigma = 1 and b = c = 0.

    The latents start at h0 = v0 ~ U[0, 1], and the sweep draws v1 = h0 + eps and h1 = v1 + eps'.
    """
    model = eb.GaussianLatentModel(v_dim=1, h_dim=1).double().requires_grad_(False)
    model.W.fill_(1.0)
    _, h, _ = ends(model, eb.Gibbs(n_steps=1))
    variance = 1 / 12 + 2
    assert h.mean().item() == pytest.approx(0.5, abs=4 * math.sqrt(variance / N_CHAINS))
    # The variance would be 3 + 1/12 if h0 were drawn instead of being a mean.
    assert h.var().item() == pytest.approx(variance, rel=4 * math.sqrt(2 / N_CHAINS))


def test_mean_and_draw_differ_by_the_visible_noise_only():
    model = random_grbm(3, 4).requires_grad_(False)
    sampler = eb.Gibbs(n_steps=5)
    draw = sampler.sample(model, N_CHAINS, generator())
    # This is the same chain, with the same random numbers.
    mean = sampler.sample(model, N_CHAINS, generator(), mean=True)
    torch.testing.assert_close((draw - mean).std(0), model.visible_std(), rtol=4 / math.sqrt(2 * N_CHAINS), atol=0)
    _, h, end = ends(model, sampler.of_means(), n=100)
    torch.testing.assert_close(end, model.visible_mean(h))


def test_a_model_without_conditionals_is_refused():
    binary = LatentOnly(random_grbm(2, 2))
    binary.continuous = False
    with pytest.raises(eb.ConfigError, match=r"LatentOnly cannot be sampled by Gibbs.*conditionals"):
        eb.Gibbs(n_steps=1).sample(binary, 5, generator())
