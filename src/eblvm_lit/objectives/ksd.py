"""The kernelized Stein discrepancy between the data and the model."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor

from eblvm_lit.core.minibatch import WHOLE, Minibatch
from eblvm_lit.core.tensors import median_distance
from eblvm_lit.errors import ConfigError
from eblvm_lit.objectives.base import Noise, Objective, ScoreFunction

__all__ = ["KSD", "stein_kernel"]


def stein_kernel(v: Tensor, s: Tensor, x: Tensor, t: Tensor, bandwidth: Tensor | float) -> Tensor:
    r"""Compute the Stein kernel u(v, x) of a Gaussian kernel k with bandwidth b, given the scores s at v and t at x.

    .. math:: u(v, x) = k\, s^\top t + s^\top \nabla_x k + t^\top \nabla_v k + \mathrm{tr}\, \nabla_v \nabla_x k, \quad
        k = \exp(-\|v - x\|^2 / 2 b^2)

    The mean of u over independent pairs of data is the squared discrepancy of the data from the distribution that has
    this score. The discrepancy is zero if the two distributions are equal. Reference: Liu et al. 2016, Eq. 8.

    Args:
        v: The first point of each pair, shape (*n, d).
        s: The scores at v, shape (*n, d).
        x: The second point of each pair, shape (*n, d). For all pairs, v has shape (n, 1, d) and x has shape (m, d).
        t: The scores at x, of the same shape as x.
        bandwidth: The bandwidth b, in the units of v.

    Returns:
        The kernel's value for each pair, shape (*n), or (n, m) for all pairs.

    Example:
        >>> v = torch.randn(4000, 1, generator=torch.Generator().manual_seed(0))
        >>> right, wrong = (stein_kernel(v[:2000], a * v[:2000], v[2000:], a * v[2000:], 1.0).mean() for a in (-1, -2))
        >>> abs(right) < 0.03, wrong > 0.1
        (tensor(True), tensor(True))
    """
    gap = v - x
    square = gap.square().sum(-1)
    precision = bandwidth**-2
    trace = v.shape[-1] * precision - square * precision**2
    return (-0.5 * square * precision).exp() * ((s * t).sum(-1) + ((s - t) * gap).sum(-1) * precision + trace)


def _second_half(x: Tensor) -> Tensor:
    """Return a mask, shape (B,), that is 1 for the second half of the minibatch and 0 for the first.

    The one-sided form differentiates only the scores of the second half.
    """
    return (torch.arange(len(x), device=x.device) >= len(x) // 2).to(x.dtype)


class KSD(Objective):
    r"""The squared kernelized Stein discrepancy between the data and the model.

    .. math:: E_{v, v'}\, u(v, v'), \quad u \text{ the Stein kernel of a Gaussian kernel}

    An example of the first half of the minibatch is paired with one of the second half, as in the paper; or all
    B (B - 1) ordered pairs are used, which gives a U-statistic. The loss of an example is the mean of u over the pairs
    that contain it. The gradient goes through the scores of both examples of a pair. The authors' code treats the score
    of the first example as a constant (``one_sided``):

    .. math:: \nabla_\theta \approx E_{v, v'}\, [\partial s(v') / \partial \theta]^\top (k\, s(v) + \nabla_v k)

    The mean of the one-sided gradient is half of the two-sided gradient: the one-sided gradients for the two examples
    of a pair add up to the two-sided one. If several processes share a minibatch, they exchange the points and
    scores that the pairs need. For halves they exchange nothing, because both examples of a pair are in one shard,
    unless the bandwidth is the median. Reference: Bao et al. 2021, section 3.2; Liu et al. 2016.

    Args:
        bandwidth: The kernel's bandwidth b, in the units of v, or ``median`` for the median distance between the
            examples of the minibatch.
        pairs: ``halves`` pairs the two halves of the minibatch, ``one_sided`` does so with the first score constant,
            ``all`` uses all pairs.

    Raises:
        ConfigError: In :meth:`check_batch_size`, if the examples of a minibatch cannot be paired.

    Example:
        >>> KSD(bandwidth=1.0).loss(lambda v: -v, torch.tensor([[1.0], [1.0]]), {}).tolist()  # u = s^2 + d / b^2
        [2.0, 2.0]
    """

    words = "kernelised Stein discrepancy"
    pointwise = True

    def __init__(
        self,
        *,
        bandwidth: PositiveFloat | Literal["median"] = 0.1,
        pairs: Literal["halves", "all", "one_sided"] = "halves",
    ) -> None:
        self.bandwidth: float | Literal["median"] = bandwidth
        self.pairs: Literal["halves", "all", "one_sided"] = pairs
        self.minibatch = WHOLE

    def on_minibatch(self, minibatch: Minibatch) -> KSD:
        """Return a version of the objective that forms pairs of the examples of this minibatch."""
        if minibatch is self.minibatch:
            return self
        own = KSD(bandwidth=self.bandwidth, pairs=self.pairs)
        own.minibatch = minibatch
        return own

    def check_batch_size(self, n: int) -> None:
        """Raise a ConfigError if n examples cannot be paired."""
        if self.pairs != "all" and n % 2:
            raise ConfigError(
                f"KSD pairs the two halves of a minibatch, but {n} examples cannot be halved: choose an even "
                "data.batch_size that leaves no odd last minibatch, or objective.pairs=all."
            )

    def noise(self, v: Tensor, shape: tuple[int, ...], generator: torch.Generator) -> Noise:
        """Return no noise, because the loss is deterministic."""
        return {}

    def _bandwidth(self, v: Tensor) -> Tensor | float:
        return median_distance(self.minibatch.gather(v)) if self.bandwidth == "median" else self.bandwidth

    def _partners(self, x: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return all points of the minibatch, their scores, and a mask of the points that are paired with x.

        x are the points of this process, and s are their scores. The n points of the minibatch and their scores have
        shape (n, d) each. The mask, shape (B, n), is 0 where a point would be paired with itself and 1 elsewhere.
        """
        points, scores = self.minibatch.gather(torch.cat([x, s], 1)).chunk(2, 1)
        itself = torch.eye(len(points), dtype=x.dtype, device=x.device)
        rows = self.minibatch.rows
        return points, scores, 1 - (itself if rows is None else itself[rows])

    def loss(self, score: ScoreFunction, v: Tensor, noise: Noise) -> Tensor:
        """Compute the loss of each example, shape (B,)."""
        x = v.flatten(1)
        s = score(v).flatten(1)
        b = self._bandwidth(x)
        n = len(v)
        if self.pairs != "all":
            partner = s.roll(n // 2, 0)
            if self.pairs == "halves":
                return stein_kernel(x, s, x.roll(n // 2, 0), partner, b)
            return 2 * _second_half(x) * stein_kernel(x, s, x.roll(n // 2, 0), partner.detach(), b)
        points, scores, others = self._partners(x, s)
        u = stein_kernel(x.unsqueeze(1), s.unsqueeze(1), points, scores, b)
        return (u * others).sum(1) / (len(points) - 1)

    def cotangent(self, s: Tensor, v: Tensor, noise: Noise) -> Tensor:
        r"""Compute the gradient of the summed loss with respect to the scores s at v, shape (B, *event).

        The gradient is the mean of :math:`2 (k\, s(v') + \nabla_{v'} k)` over the partners v' of v, with the Gaussian
        kernel k. For the first half of a minibatch the gradient is 0 in the one-sided form.
        """
        x = v.flatten(1)
        t = s.flatten(1)
        b = self._bandwidth(x)
        n = len(v)
        if self.pairs != "all":
            gap = x - x.roll(n // 2, 0)
            k = (-0.5 * gap.square().sum(-1, keepdim=True) / b**2).exp()
            pull = 2 * k * (t.roll(n // 2, 0) + gap / b**2)
            return (pull if self.pairs == "halves" else _second_half(x).unsqueeze(1) * pull).view_as(v)
        points, scores, others = self._partners(x, t)
        k = (-0.5 * (x.unsqueeze(1) - points).square().sum(-1) / b**2).exp() * others
        pull = k @ scores + (k.sum(1, keepdim=True) * x - k @ points) / b**2
        return (2 / (len(points) - 1) * pull).view_as(v)
