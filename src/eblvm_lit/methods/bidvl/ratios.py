"""Importance ratios r(v) = p(v) / q(v): the weight of each example of the data in the lower level."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import torch
from pydantic import PositiveFloat
from torch import Tensor

from eblvm_lit.core.minibatch import WHOLE
from eblvm_lit.energies.base import MarginalEnergy

__all__ = ["ClampedExponentialRatio", "ConstantRatio", "SigmoidRatio"]

Mean = Callable[[Tensor], Tensor]


class ConstantRatio:
    r"""The importance ratio of the model to the data, taken as a constant.

    .. math:: r(v) = p(v) / q(v) \approx r'

    Args:
        scale: r'; published as 0.05 at 32 pixels and in the residual networks, and 0.1 at 64.

    Example:
        >>> ConstantRatio(scale=0.05)(None, torch.zeros(2, 3))
        tensor([0.0500, 0.0500])
    """

    def __init__(self, *, scale: PositiveFloat = 0.05) -> None:
        self.scale = scale

    def __call__(self, energy: MarginalEnergy | None, v: Tensor, mean: Mean = WHOLE.mean) -> Tensor:
        """r(v), shape (B,), of v (B, *event); ``mean`` turns a mean over these rows into one over the minibatch."""
        return v.new_full((len(v),), self.scale)


class _BiasedRatio(ConstantRatio):
    """A ratio with a factor that depends on how far an example's energy is below the minibatch's mean."""

    @abstractmethod
    def bias(self, excess: Tensor) -> Tensor:
        """The factor, shape (B,), of mean E - E(v) (B,)."""

    def __call__(self, energy: MarginalEnergy, v: Tensor, mean: Mean = WHOLE.mean) -> Tensor:
        """r(v), shape (B,), of v (B, *event); it is a constant to every gradient."""
        e = energy.free_energy(v).detach()
        return self.scale * self.bias(mean(e.mean()) - e)


class SigmoidRatio(_BiasedRatio):
    r"""A ratio that grows as the energy falls, up to r' (Kan et al. 2022).

    .. math:: r(v) = r' / (1 + e^{E(v) - \bar E})

    where the mean of E is over the minibatch.

    Args:
        scale: r'.

    Example:
        >>> SigmoidRatio(scale=0.1).bias(torch.tensor([0.0, 100.0]))
        tensor([0.5000, 1.0000])
    """

    def bias(self, excess: Tensor) -> Tensor:
        """Between 0 and 1, shape (B,)."""
        return torch.sigmoid(excess)


class ClampedExponentialRatio(_BiasedRatio):
    r"""A ratio that is the model's density over the minibatch's mean, within bounds (Kan et al. 2022, code).

    .. math:: r(v) = r' \min(\max(e^{\bar E - E(v)}, a), b)

    The released code computes it without using it.

    Args:
        scale: r'.
        low: a.
        high: b.

    Example:
        >>> ClampedExponentialRatio(scale=0.1).bias(torch.tensor([-5.0, 0.0, 5.0]))
        tensor([0.8000, 1.0000, 1.2000])
    """

    def __init__(self, *, scale: PositiveFloat = 0.05, low: PositiveFloat = 0.8, high: PositiveFloat = 1.2) -> None:
        super().__init__(scale=scale)
        self.low = low
        self.high = high

    def bias(self, excess: Tensor) -> Tensor:
        """Between low and high, shape (B,)."""
        return excess.exp().clamp(self.low, self.high)
