"""Tests of the Stein kernel and of the objective that uses it."""

import numpy as np
import pytest
import torch

import eblvm_lit as eb
from cases import ENERGIES, V_DIM, hermite
from eblvm_lit.objectives.ksd import KSD, stein_kernel

pytestmark = pytest.mark.usefixtures("float64")
BINARY = [case for case in ENERGIES if case.binary]
KINDS = [{"bandwidth": 0.7, "pairs": pairs} for pairs in ("halves", "all", "one_sided")]
KINDS += [{"bandwidth": "median", "pairs": pairs} for pairs in ("halves", "all")]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=str)


@pytest.mark.parametrize("b", [0.3, 1.0])
def test_stein_kernel_by_autograd(b):
    v, x, s, t = torch.randn(4, 5, 3).unbind()

    def k(v, x):
        return (-(v - x).square().sum(-1) / (2 * b**2)).exp()

    for i in range(5):
        args = (v[i], x[i])
        dv = torch.func.grad(k, 0)(*args)
        dx = torch.func.grad(k, 1)(*args)
        mixed = torch.func.jacrev(torch.func.grad(k, 0), 1)(*args)
        expected = k(*args) * s[i] @ t[i] + s[i] @ dx + t[i] @ dv + mixed.trace()
        torch.testing.assert_close(stein_kernel(*(a[i] for a in (v, s, x, t)), b), expected)


def discrepancy(precision, shift, b):
    """Compute the exact squared KSD between N(0, 1) and N(shift, 1 / precision) by quadrature."""
    x, w = hermite(60, 1)
    s = -precision * (x - shift)
    return (w.unsqueeze(1) * w * stein_kernel(x.unsqueeze(1), s.unsqueeze(1), x, s, b)).sum()


def test_discrepancy_is_zero_at_the_data_and_positive_elsewhere():
    assert discrepancy(1.0, 0.0, 0.8).abs() < 1e-10
    # The squared KSD is E k(v, v') d(v) d(v'), where d is the difference of the scores of model and data.
    x, w = hermite(60, 1)
    for precision, shift in ((2.0, 0.0), (0.5, 0.0), (1.0, 0.4)):
        d = (-precision * (x - shift) + x).squeeze(-1)
        k = (-0.5 * (x - x.T).square() / 0.8**2).exp()
        expected = ((w * d).unsqueeze(1) * k * (w * d)).sum()
        torch.testing.assert_close(discrepancy(precision, shift, 0.8), expected, rtol=1e-8, atol=1e-10)
        assert expected > 1e-2


@every_kind
def test_cotangent_is_the_derivative_by_the_score(kind):
    objective = KSD(**kind)
    for v in (torch.randn(6, 2), 0.3 * torch.randn(6, 1, 2, 3)):
        s = torch.randn(v.shape, requires_grad=True)
        (expected,) = torch.autograd.grad(objective.loss(lambda x, s=s: s, v, {}).sum(), s)
        torch.testing.assert_close(objective.cotangent(s.detach(), v, {}), expected)
        torch.testing.assert_close(
            eb.Objective.cotangent(objective, s.detach(), v, {}), expected, rtol=1e-13, atol=1e-13
        )
        assert expected.abs().max() > 1e-3


@every_kind
def test_loss_is_the_mean_over_the_pairs(kind):
    objective = KSD(**kind)
    v = torch.randn(6, 2)
    s = torch.randn(6, 2)
    gaps = (v.unsqueeze(1) - v).norm(dim=-1)
    # The bandwidth is either fixed or the median of the 15 distances of pairs.
    b = 0.7 if kind["bandwidth"] == 0.7 else np.sort(gaps[*np.triu_indices(6, 1)].numpy())[7]
    u = torch.stack([torch.stack([stein_kernel(v[i], s[i], v[j], s[j], b) for j in range(6)]) for i in range(6)])
    torch.testing.assert_close(u, u.T)
    loss = objective.loss(lambda x: s, v, {})
    if kind.get("pairs") == "all":
        torch.testing.assert_close(loss.mean(), (u.sum() - u.trace()) / 30)
    else:
        torch.testing.assert_close(loss.mean(), (u[0, 3] + u[1, 4] + u[2, 5]) / 3)


def test_the_one_sided_gradient_is_the_published_one_and_both_sides_add_up_to_the_default():
    """Compare with the published gradient, the mean of z' ds(v')/dtheta with z = k s(v) + grad_v k held constant.

    v and v' come from the two halves of the minibatch (Bao et al. 2021 and code).
    """
    energy = BINARY[0].make()
    v = torch.randn(6, V_DIM)
    theta = eb.params_of(energy)
    b = 0.7

    def one_sided(theta, v, other):
        k = (-0.5 * (v - other).square().sum(-1, keepdim=True) / b**2).exp()
        z = (k * energy.score(v) - k * (v - other) / b**2).detach()  # z = k s(v) + grad_v k
        return (z * eb.bind(energy, theta).score(other)).sum(-1).mean()

    halves = v[:3], v[3:]
    parts = [torch.func.grad(one_sided)(theta, *pair) for pair in (halves, halves[::-1])]

    def gradient(v, **options):
        return torch.func.grad(lambda t: KSD(bandwidth=b, **options).loss(eb.bind(energy, t).score, v, {}).mean())(
            theta
        )

    sides = [gradient(x, pairs="one_sided") for x in (v, v.roll(3, 0))]
    for name, value in gradient(v).items():
        for published, side in zip(parts, sides, strict=True):
            torch.testing.assert_close(side[name], published[name])
        torch.testing.assert_close(value, sides[0][name] + sides[1][name])


def test_an_odd_number_of_examples_has_no_halves():
    with pytest.raises(eb.ConfigError, match=r"7 examples cannot be halved: .* even data\.batch_size"):
        KSD().check_batch_size(7)
