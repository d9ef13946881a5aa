"""Tests of posteriors: densities against torch.distributions, and samples against exact moments."""

import math

import pytest
import torch

import eblvm_lit as eb
from cases import H_DIM, POSTERIORS, V_DIM, randomise
from eblvm_lit.core.seeding import keyed_generator

pytestmark = pytest.mark.usefixtures("float64")
every_posterior = pytest.mark.parametrize("case", POSTERIORS, ids=str)
with_nodes = pytest.mark.parametrize("case", [case for case in POSTERIORS if case.nodes], ids=str)


@every_posterior
def test_log_prob_is_that_of_the_distribution(case):
    q = case.make()
    v = torch.randn(4, *case.event_shape)
    h = torch.randint(0, 2, (2, 5, 4, H_DIM)).double()
    if q.continuous:
        h = h + torch.randn(h.shape)
    torch.testing.assert_close(q.log_prob(h, v), case.distribution(q, v).log_prob(h))
    torch.testing.assert_close(q.log_prob(h[0, 0], v), q.log_prob(h, v)[0, 0])
    torch.testing.assert_close(q.mean(v), case.distribution(q, v).mean)
    torch.testing.assert_close(q(v), q.mean(v))
    assert len(q.mean(v).unique()) == q.mean(v).numel()


@every_posterior
def test_shapes_particles_first_and_noise_by_its_generator(case):
    q = case.make()
    v = torch.randn(4, *case.event_shape)
    for shape in ((), (2, 5)):
        noise = q.noise(shape, v, keyed_generator(0))
        h = q.rsample(v, noise)
        assert noise.shape == h.shape == (*shape, 4, H_DIM)
        assert q.log_prob(h, v).shape == (*shape, 4)
    assert q.noise((3,), v.float(), keyed_generator(0)).dtype == torch.float32
    one, same, other = (q.noise((3,), v, keyed_generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert (one != other).all()


@with_nodes
def test_samples_have_the_distributions_moments(case):
    q = case.make()
    v = torch.randn(4, *case.event_shape)
    noise, weights = case.nodes(q, v)
    h = q.rsample(v, noise)
    p = case.distribution(q, v)
    torch.testing.assert_close(weights.sum(0), torch.ones(4))
    mean = (weights.unsqueeze(-1) * h).sum(0)
    torch.testing.assert_close(mean, p.mean)
    centred = (h - mean).movedim(0, 1)
    covariance = torch.einsum("sb,bsi,bsj->bij", weights, centred, centred)
    torch.testing.assert_close(covariance, torch.diag_embed(p.variance))


@every_posterior
def test_law_of_the_noise(case):
    q = case.make()
    v = torch.zeros(20000, *case.event_shape)
    noise = q.noise((), v, keyed_generator(0))
    mean, var = (0.0, 1.0) if q.continuous else (0.5, 1 / 12)
    assert (noise.mean(0) - mean).abs().max() < 5 * math.sqrt(var / len(v))
    assert (noise.var(0) / var - 1).abs().max() < 5 * math.sqrt(2 / len(v))


def test_relaxed_sample_is_the_two_class_gumbel_softmax():
    q = randomise(eb.BernoulliPosterior(v_dim=V_DIM, h_dim=H_DIM))
    v = torch.randn(4, V_DIM)
    first, second = -(-torch.rand(2, 6, 4, H_DIM).log()).log()
    u = (first - second).sigmoid()  # the difference of two Gumbel variables is logistic
    logits = torch.stack([q.logits(v) + first, second], -1)
    expected = torch.softmax(logits / 0.1, -1)[..., 0]
    torch.testing.assert_close(q.rsample(v, u), expected)


def test_relaxed_samples_tend_to_the_probabilities():
    q = randomise(eb.BernoulliPosterior(v_dim=V_DIM, h_dim=H_DIM), 1.0)
    v = torch.randn(4, V_DIM)
    u = ((torch.arange(20000) + 0.5) / 20000).view(-1, 1, 1).expand(-1, 4, H_DIM)
    bias = {}
    for q.temperature in (1.0, 0.1, 0.01, 0.0):
        bias[q.temperature] = (q.rsample(v, u).mean(0) - q.mean(v)).abs().max()
    assert bias[1.0] > 0.02 > bias[0.1] > bias[0.01]
    assert bias[0.01] < 1e-4
    assert bias[0.0] < 1e-4
    assert bias[0.1] > 1e-4  # The relaxed samples have a bias, because a relaxation is not the distribution itself.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_uniforms_stay_finite(dtype):
    q = randomise(eb.BernoulliPosterior(v_dim=V_DIM, h_dim=H_DIM)).to(dtype)
    v = torch.randn(2, V_DIM, dtype=dtype)
    nearly_one = 1 - torch.finfo(dtype).eps / 2
    for u in (0.0, nearly_one):
        h = q.rsample(v, torch.full((2, H_DIM), u, dtype=dtype))
        assert torch.equal(h.round(), torch.full_like(h, round(u)))
        (grads,) = torch.autograd.grad(q.log_prob(h, v).sum(), q.linear.bias)
        assert torch.isfinite(grads).all()


def test_a_bounded_standard_deviation_has_its_formula():
    network = eb.MLP(sizes=[V_DIM, 5, 4])
    free = randomise(eb.NetworkGaussianPosterior(network=network, h_dim=H_DIM))
    bounded = eb.NetworkGaussianPosterior(network=network, h_dim=H_DIM, std_range=[0.1, 0.7])
    bounded.load_state_dict(free.state_dict())
    v = torch.randn(5, V_DIM)
    (mean, raw) = free.moments(v)
    (same, log_std) = bounded.moments(v)
    torch.testing.assert_close(same, mean)
    torch.testing.assert_close(log_std.exp(), 0.1 + 0.6 / (1 + torch.exp(-raw)))
