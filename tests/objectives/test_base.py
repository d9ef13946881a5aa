"""Tests of objectives: exact expectations against closed forms, signs, shapes and noise."""

import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

import eblvm_lit as eb
from cases import OBJECTIVES, hermite
from eblvm_lit.core.functional import plain_autograd
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.runs.instantiate import instantiate

pytestmark = pytest.mark.usefixtures("float64")
every_objective = pytest.mark.parametrize("case", OBJECTIVES, ids=str)
denoising = pytest.mark.parametrize("case", [c for c in OBJECTIVES if "dsm" in c.name], ids=str)


def expected_loss(case, objective, score, points, p):
    """Compute the exact mean loss over data ``points`` (T, d) with probabilities p (T,) and over the noise."""
    noise, weights = case.nodes(objective, points.shape[1])
    v = points.repeat_interleave(len(weights), 0)
    noise = {name: x.repeat(len(points), *(1,) * (x.dim() - 1)) for name, x in noise.items()}
    loss = objective.loss(score, objective.perturb(v, noise), noise)
    return (torch.outer(p, weights).flatten() * loss).sum()


class OneScale(eb.MarginalEnergy):
    """The energy of N(0, exp(rho)^2), whose only parameter is rho."""

    event_shape = (1,)
    h_dim = 0

    def __init__(self, rho):
        super().__init__()
        self.rho = nn.Parameter(torch.tensor(rho))

    def energy(self, v, h):
        raise NotImplementedError

    def free_energy(self, v):
        return 0.5 * (v * (-self.rho).exp()).square().sum(-1)


@every_objective
@pytest.mark.parametrize("rho", [-0.7, 0.7])
def test_a_step_moves_a_wrong_scale_towards_that_of_the_data(case, rho):
    energy = OneScale(rho)
    objective = case.make()
    # The data come from N(0, 1), which the model fits with rho = 0.
    loss = expected_loss(case, objective, eb.ExactScore(energy), *hermite(3, 1))
    (slope,) = torch.autograd.grad(loss, energy.rho)
    assert slope.sign() == math.copysign(1, rho)
    assert abs(rho - 1e-3 * slope) < abs(rho) - 1e-4


@every_objective
def test_the_right_scale_is_stationary(case):
    objective = case.make()
    for shift, sign in ((-0.05, -1), (0.0, 0), (0.05, 1)):
        energy = OneScale(-0.5 * math.log(case.precision(objective)) + shift)
        loss = expected_loss(case, objective, eb.ExactScore(energy), *hermite(3, 1))
        (slope,) = torch.autograd.grad(loss, energy.rho)
        assert slope.abs() < 1e-10 if sign == 0 else slope * sign > 1e-3


@every_objective
def test_expectation_for_a_gaussian(case):
    objective = case.make()
    d = 3
    A = torch.randn(d, d)
    C = torch.randn(d, d)
    mu = torch.randn(d)
    m = torch.randn(d)
    P = A @ A.T + torch.eye(d)
    (z, p) = hermite(3, d)
    mean = expected_loss(case, objective, lambda x: (mu - x) @ P, m + z @ C.T, p)
    torch.testing.assert_close(mean, case.gaussian(objective, P, mu, m, C @ C.T), rtol=1e-10, atol=0)


def test_mean_of_sliced_score_matching_is_score_matching():
    # The identity holds for any vector field, not only for gradients. It is also exact for Gaussian directions, because
    # the quadratic form has degree 2.
    A = torch.randn(3, 5)
    C = torch.randn(5, 3)
    v = torch.randn(4, 3)
    field = lambda x: (x @ A).tanh() @ C  # noqa: E731
    exact = eb.SM().loss(field, v, {})
    jacobian = torch.func.vmap(torch.func.jacrev(field))(v)
    torch.testing.assert_close(exact, 0.5 * field(v).square().sum(-1) + jacobian.diagonal(dim1=1, dim2=2).sum(-1))
    for case in OBJECTIVES[1:3]:
        noise, weights = case.nodes(case.make(), 3)
        sliced = torch.stack([case.make().loss(field, v, {"u": u.expand(4, -1)}) for u in noise["u"]])
        torch.testing.assert_close(weights @ sliced, exact, rtol=1e-10, atol=1e-10)
        assert sliced.std(0).min() > 1e-2


def test_score_matching_uses_the_divergence_method_of_a_score():
    class Linear:
        def __call__(self, v):
            return -2 * v

        def divergence(self, v):
            return torch.full((len(v),), 17.0)

    assert eb.SM().loss(Linear(), torch.ones(1, 3), {}).item() == 0.5 * 12 + 17


def test_denoising_is_minimised_by_the_score_of_the_noised_data():
    data = torch.tensor([[-1.3], [0.2], [0.9]])
    sigma = 0.8
    objective = eb.DSM(noise_std=sigma)
    (eps, w) = hermite(60, 1)
    p = w.repeat(3) / 3
    v = data.repeat_interleave(60, 0)
    noise = {"eps": eps.repeat(3, 1)}
    points = objective.perturb(v, noise)

    def noised_score(x):
        weights = torch.softmax(-0.5 * ((x - data.T) / sigma) ** 2, -1)
        return (weights @ data - x) / sigma**2

    def slope_along(field):
        def mean(t):
            return p @ objective.loss(lambda x: noised_score(x) + t * field(x), points, noise)

        return torch.func.grad(mean)(torch.zeros(())), mean(0.3) - mean(0.0)

    for field in (torch.sin, torch.cos, lambda x: x, torch.ones_like):
        slope, excess = slope_along(field)
        assert slope.abs() < 1e-8
        expected = 0.5 * 0.3**2 * p @ field(points).square().squeeze(-1)
        torch.testing.assert_close(excess, expected, rtol=1e-6, atol=0)


@denoising
def test_denoising_losses_row_by_row(case):
    objective = case.make()
    v = torch.randn(5, 2)
    noise = objective.noise(v, (), keyed_generator(0))
    x = objective.perturb(v, noise).numpy()
    loss = objective.loss(lambda y: torch.sin(y) - y, torch.as_tensor(x), noise)
    sigma = {
        "dsm": np.full(5, 0.3),
        "mdsm-linear": np.array([0.2, 0.25, 0.3, 0.35, 0.4]),
        "mdsm-geometric": 0.2 * 2.0 ** (np.arange(5) / 4),
    }[case.name]
    for i in range(5):
        eps = noise["eps"][i].numpy()
        np.testing.assert_allclose(x[i], v[i].numpy() + sigma[i] * eps)
        s = np.sin(x[i]) - x[i]
        residual = s + eps / 0.3 if case.name == "dsm" else s / sigma[i] + eps / 0.3**2
        np.testing.assert_allclose(loss[i], 0.5 * (residual**2).sum())


@pytest.mark.parametrize("ladder", ["linear", "geometric"])
@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_every_batch_has_its_own_whole_ladder(ladder, size):
    objective = eb.MDSM(sigma_min=0.1, sigma_max=3.0, sigma0=0.1, ladder=ladder)
    sigma = objective.levels(torch.zeros(size, 1, 2, 2))
    assert sigma.shape == (size,)
    torch.testing.assert_close(sigma[0], torch.tensor(0.1))
    if size > 1:
        torch.testing.assert_close(sigma[-1], torch.tensor(3.0))
        steps = sigma.diff() if ladder == "linear" else sigma.log().diff()
        torch.testing.assert_close(steps, steps[:1].expand(size - 1))


@pytest.mark.parametrize("ladder", ["linear", "geometric"])
def test_a_batch_of_one_example_has_a_random_level_of_the_ladder(ladder):
    objective = eb.MDSM(sigma_min=0.1, sigma_max=3.0, sigma0=0.1, ladder=ladder)
    v = torch.zeros(1, 2)
    sigma = objective.noise(v, (2000,), keyed_generator(0))["sigma"]
    assert sigma.shape == (2000, 1)
    found = sigma.flatten().sort().values
    # the levels of a batch of this size are the quantiles of the ladder
    expected = objective.levels(torch.zeros(2000, 2))
    scale = (lambda x: x) if ladder == "linear" else torch.log
    width = scale(torch.tensor(3.0)) - scale(torch.tensor(0.1))
    # The Kolmogorov-Smirnov statistic exceeds this bound with a probability of 0.1 %.
    assert ((scale(found) - scale(expected)).abs() / width).max() < 1.95 / 2000**0.5
    one = objective.noise(v, (), keyed_generator(1))
    torch.testing.assert_close(objective.perturb(v, one), one["sigma"].unsqueeze(1) * one["eps"])


@every_objective
def test_weight_of_the_lower_loss(case):
    objective = case.make()
    v = torch.randn(5, 2)
    if not case.name.startswith("mdsm"):
        assert objective.lower_weight is None
        return
    noise = {name: x[1] for name, x in objective.noise(v, (3,), keyed_generator(0)).items()}
    torch.testing.assert_close(objective.lower_weight(noise), 1 / objective.levels(v))
    objective.lower_weighting = False
    assert objective.lower_weight(noise) == 1.0


@every_objective
def test_images_and_vectors_give_the_same(case):
    objective = case.make()
    A = torch.randn(6, 6)
    flat_score = lambda x: torch.sin(x @ A) - x  # noqa: E731
    image_score = lambda x: flat_score(x.flatten(1)).view_as(x)  # noqa: E731
    images = torch.randn(5, 1, 2, 3)
    noise = objective.noise(images, (), keyed_generator(0))
    flat_noise = {name: x.flatten(1) if x.dim() > 1 else x for name, x in noise.items()}
    points = objective.perturb(images, noise)
    flat_points = objective.perturb(images.flatten(1), flat_noise)
    torch.testing.assert_close(points.flatten(1), flat_points)
    loss = objective.loss(image_score, points, noise)
    assert loss.shape == (5,)
    torch.testing.assert_close(loss, objective.loss(flat_score, flat_points, flat_noise))


@denoising
def test_cotangent_is_the_derivative_by_the_score(case):
    objective = case.make()
    for v in (torch.randn(5, 2), torch.randn(5, 1, 2, 3)):
        noise = objective.noise(v, (), keyed_generator(0))
        s = torch.randn(v.shape, requires_grad=True)
        (expected,) = torch.autograd.grad(objective.loss(lambda x, s=s: s, v, noise).sum(), s)
        torch.testing.assert_close(objective.cotangent(s, v, noise), expected)
        # The base class computes cotangents by autograd with either backend, for objectives without a closed form.
        for backend in (nullcontext, plain_autograd):
            with backend():
                found = eb.Objective.cotangent(objective, s.detach(), v, noise)
            torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)


@every_objective
def test_noise_is_a_function_of_the_generator(case):
    objective = case.make()
    v = torch.randn(20, 3)
    one, same, other = (objective.noise(v, (2, 4), keyed_generator(seed)) for seed in (1, 1, 2))
    for name in one:
        shape = (20,) if name == "sigma" else v.shape
        assert one[name].shape == (2, 4, *shape)
        assert torch.equal(one[name], same[name])
        assert torch.equal(one[name], other[name]) == (name == "sigma")
        assert torch.equal(one[name][0, 0], one[name][1, 2]) == (name == "sigma")
    assert all(x.dtype == torch.float32 for x in objective.noise(v.float(), (), keyed_generator(0)).values())
    noise = {name: x[1, 2] for name, x in one.items()}
    assert torch.equal(objective.perturb(v, noise), v) != objective.perturbs


@pytest.mark.parametrize("case", OBJECTIVES[1:], ids=str)
def test_noise_is_white(case):
    noise = case.make().noise(torch.zeros(20000, 3), (), keyed_generator(0))
    x = noise["u" if "u" in noise else "eps"]
    assert x.mean(0).abs().max() < 5 / math.sqrt(20000)
    assert (x.T @ x / 20000 - torch.eye(3)).abs().max() < 5 * math.sqrt(2 / 20000)
    assert (x.abs() == 1).all() == case.name.endswith("rademacher")


def test_an_unknown_projection_is_refused():
    with pytest.raises(eb.ConfigError, match="'rademacher' or 'gaussian', not 'other'"):
        instantiate({"_target_": "eblvm_lit.objectives.ssm.SSM", "projection": "other"}, "objective")
