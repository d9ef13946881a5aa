"""Tests of dual score matching: at the true energy, both residuals have mean zero given the noised data."""

import math

import pytest
import torch

from cases import hermite
from eblvm_lit.core.noise_levels import NoisedNormal, NoiseRange, join_level, split_level
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.objectives.dual import Dual

pytestmark = pytest.mark.usefixtures("float64")

DATA = torch.tensor([[-1.3, 0.4], [0.2, -0.7], [0.9, 1.1]], dtype=torch.float64)
LOG_P = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64).log()


def mixture_energy(w):
    """Compute F(v~, t), minus the log-density of three data points with normal noise of variance t."""
    v, log_level = split_level(w)
    squares = (v.unsqueeze(1) - DATA).square().sum(-1)  # shape (B, 3)
    log_normal = (
        -squares / (2 * log_level.exp().unsqueeze(1)) - v.shape[1] / 2 * (math.log(2 * math.pi) + log_level)[:, None]
    )
    return -(LOG_P + log_normal).logsumexp(1)


def score_of(energy):
    return lambda w: -torch.func.grad(lambda x: energy(x).sum())(w)


@pytest.mark.parametrize("log_level", [-3.0, 0.0, 2.0])
def test_derivatives_of_the_noised_density_are_what_the_noise_says_about_it(log_level):
    v = torch.randn(7, 2)
    w = join_level(v, torch.full((7,), log_level))
    s = score_of(mixture_energy)(w)
    std = math.exp(log_level / 2)
    # the unnormalised log-probability that v~ came from each data point
    log_posterior = LOG_P - (v.unsqueeze(1) - DATA).square().sum(-1) / (2 * std**2)
    posterior = log_posterior.softmax(1)
    eps = (v.unsqueeze(1) - DATA) / std
    of_v, of_level = split_level(s)
    # The gradient of F with respect to v~ is E[eps | v~] / sqrt(t).
    torch.testing.assert_close(-of_v, (posterior.unsqueeze(-1) * eps).sum(1) / std)
    # The derivative by the level is t dF/dt = (d - E[|eps|^2 | v~]) / 2.
    expected = 2 / 2 - 0.5 * (posterior * eps.square().sum(-1)).sum(1)
    torch.testing.assert_close(-of_level, expected)
    objective = Dual(noise_range=NoiseRange(smallest=0.01), time_weight=1.7)
    mean = torch.zeros_like(s)
    for k in range(3):
        noise = {"eps": eps[:, k], "log_level": torch.full((7,), log_level)}
        torch.testing.assert_close(objective.perturb(DATA[k].expand(7, 2), noise), w)
        mean += posterior[:, k : k + 1] * objective.cotangent(s, w, noise)
    torch.testing.assert_close(mean, torch.zeros_like(s), rtol=0, atol=1e-12)


def test_the_reference_is_the_density_of_noised_normal_data():
    (eps, weights) = hermite(40, 2)
    reference = NoisedNormal(NoiseRange(mean=[0.3, -0.2], std=1.4))
    t = 0.7
    # For data N(m, s^2 I), the noise given v~ is normal with mean sqrt(t) (v~ - m) / (s^2 + t) and variance s^2 / (s^2
    # + t).
    v = torch.randn(1, 2)
    mean = math.sqrt(t) * (v - reference.mean) / (1.4**2 + t)
    noise = {"eps": mean + 1.4 / math.sqrt(1.4**2 + t) * eps, "log_level": torch.full((len(eps),), math.log(t))}
    w = join_level(v.expand(len(eps), 2), noise["log_level"])
    slope = Dual(noise_range=NoiseRange(smallest=0.01)).cotangent(score_of(reference.energy)(w), w, noise)
    torch.testing.assert_close(weights @ slope, torch.zeros(3), rtol=0, atol=1e-10)
    # These nodes of N(m, 2.5^2 I) integrate the density exp(-F), which is that of N(m, (s^2 + t) I).
    x = 2.5 * eps + reference.mean
    density = (-reference.energy(join_level(x, noise["log_level"]))).exp()
    base = (-0.5 * eps.square().sum(1)).exp() / (2 * math.pi * 2.5**2)
    torch.testing.assert_close(weights @ (density / base), torch.tensor(1.0))


@pytest.mark.parametrize("unit_variance", [False, True])
def test_loss_and_cotangent_of_images(unit_variance):
    noise_range = NoiseRange(smallest=0.01, std=1.4)
    objective = Dual(noise_range=noise_range, time_weight=1.7, unit_variance=unit_variance)
    v = torch.randn(5, 1, 2, 3)
    noise = objective.noise(v, (), keyed_generator(0))
    w = objective.perturb(v, noise)
    s = torch.randn(5, 7, requires_grad=True)
    loss = objective.loss(lambda _: s, w, noise)
    for i in range(5):
        t = float(noise["log_level"][i].exp())
        eps = noise["eps"][i].flatten()
        torch.testing.assert_close(w[i], torch.cat([v[i].flatten() + math.sqrt(t) * eps, torch.tensor([math.log(t)])]))
        in_space = (math.sqrt(t) * s[i, :6] + eps).square().sum() / 6
        in_level = ((1 - eps @ eps / 6) / 2 + s[i, 6] / 6) ** 2
        weight = (1.4**2 + t) / 1.4**2 if unit_variance else 1.0
        torch.testing.assert_close(loss[i], weight * in_space + 1.7 * in_level)
    (expected,) = torch.autograd.grad(loss.sum(), s)
    torch.testing.assert_close(objective.cotangent(s, w, noise), expected.detach())


@pytest.mark.parametrize("log_level", [-4.0, 0.0, 4.0])
def test_normal_data_have_a_denoising_loss_of_one_at_every_level_with_unit_variance(log_level):
    # The data have one coordinate. The first column of the nodes is for the data, and the second for the noise.
    (eps, weights) = hermite(10, 2)
    noise_range = NoiseRange(smallest=0.01, std=1.4)
    objective = Dual(noise_range=noise_range, time_weight=0.0, unit_variance=True)
    v = 1.4 * eps[:, :1]
    noise = {"eps": eps[:, 1:], "log_level": torch.full((len(eps),), log_level)}
    score = score_of(NoisedNormal(noise_range).energy)
    loss = objective.loss(score, objective.perturb(v, noise), noise)
    torch.testing.assert_close(weights @ loss, torch.tensor(1.0))


def test_levels_of_a_minibatch_are_uniform_in_their_logarithm():
    objective = Dual(noise_range=NoiseRange(smallest=0.01))
    log_level = objective.noise(torch.zeros(50, 2), (2,), keyed_generator(0))["log_level"]
    assert log_level.shape == (2, 50)
    position = (log_level - math.log(0.01)) / math.log(1e4)
    assert torch.equal((50 * position).floor(), torch.arange(50.0).expand(2, -1))
    torch.testing.assert_close(position.diff(dim=1), torch.full((2, 49), 1 / 50))
    assert position[0, 0] != position[1, 0]


def test_levels_can_have_a_peak():
    levels = NoiseRange(smallest=1e-3, largest=1e4, std=0.275)
    objective = Dual(noise_range=levels, focus_width=2.5)
    position = torch.linspace(0, 1, 100_001)
    log_level = objective.log_level(position)
    torch.testing.assert_close(log_level[[0, -1]].exp(), torch.tensor([levels.t_min, levels.t_max]))
    # The density of log t is the slope of its distribution function: that of a Cauchy distribution, cut off.
    peak = 2 * math.log(0.275) - 1
    cauchy = torch.distributions.Cauchy(peak, 2.5)
    ends = cauchy.cdf(log_level[[0, -1]])
    torch.testing.assert_close((cauchy.cdf(log_level) - ends[0]) / (ends[1] - ends[0]), position)
    uniform = Dual(noise_range=levels)
    torch.testing.assert_close(
        Dual(noise_range=levels, focus_width=1e6).log_level(position), uniform.log_level(position)
    )
    noise = objective.noise(torch.zeros(64, 3), (), keyed_generator(0, "test"))
    assert ((noise["log_level"] - peak).abs() < 2.5).double().mean() > 0.5  # 0.30 of a uniform distribution
