"""Importance ratios r(v) = p(v) / q(v), which weight the examples in the lower-level loss."""

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
    r"""The importance ratio of the model's density to the data density, approximated by a constant.

    .. math:: r(v) = p(v) / q(v) \approx r'

    Args:
        scale: The constant r'. The paper has 0.05 for 32 x 32 pixels and for residual networks, and 0.1 for 64 x 64.

    Example:
        >>> ConstantRatio(scale=0.05)(None, torch.zeros(2, 3))
        tensor([0.0500, 0.0500])
    """

    needs_free_energy = False  # whether the ratio depends on E'(v)

    def __init__(self, *, scale: PositiveFloat = 0.05) -> None:
        self.scale = scale

    def __call__(self, energy: MarginalEnergy | None, v: Tensor, mean: Mean = WHOLE.mean) -> Tensor:
        """Compute the importance ratio r(v) of each example v (B, *event), shape (B,).

        ``mean`` is a function that maps a mean over these examples to the mean over the whole minibatch.
        """
        return v.new_full((len(v),), self.scale)


class _BiasedRatio(ConstantRatio):
    """An importance ratio that depends on how far the energy of v is below the mean energy of the minibatch."""

    needs_free_energy = True

    @abstractmethod
    def bias(self, excess: Tensor) -> Tensor:
        """Compute the factor that multiplies ``scale`` for each example, shape (B,).

        ``excess`` is the minibatch's mean energy minus the energy E(v) of each example, shape (B,).
        """

    def __call__(self, energy: MarginalEnergy, v: Tensor, mean: Mean = WHOLE.mean) -> Tensor:
        """Compute the importance ratio r(v) of each example v (B, *event), shape (B,), without gradient."""
        e = energy.free_energy(v).detach()
        return self.scale * self.bias(mean(e.mean()) - e)


class SigmoidRatio(_BiasedRatio):
    r"""The importance ratio p(v) / q(v), approximated by a sigmoid that rises to ``scale`` as the energy of v falls.

    .. math:: r(v) = r' / (1 + e^{E(v) - \bar E})

    where the mean of E is over the minibatch. Reference: Kan et al. 2022.

    Args:
        scale: The largest ratio r'.

    Example:
        >>> SigmoidRatio(scale=0.1).bias(torch.tensor([0.0, 100.0]))
        tensor([0.5000, 1.0000])
    """

    def bias(self, excess: Tensor) -> Tensor:
        """Compute the factor, between 0 and 1, that multiplies ``scale`` for each example, shape (B,)."""
        return torch.sigmoid(excess)


class ClampedExponentialRatio(_BiasedRatio):
    r"""The importance ratio p(v) / q(v), approximated by a bounded exponential that grows as the energy of v falls.

    .. math:: r(v) = r' \min(\max(e^{\bar E - E(v)}, a), b)

    where the mean of E is over the minibatch. The code of Kan et al. 2022 computes this ratio without using it.

    Args:
        scale: The factor r'.
        low: The lower bound a of the exponential.
        high: The upper bound b of the exponential.

    Example:
        >>> ClampedExponentialRatio(scale=0.1).bias(torch.tensor([-5.0, 0.0, 5.0]))
        tensor([0.8000, 1.0000, 1.2000])
    """

    def __init__(self, *, scale: PositiveFloat = 0.05, low: PositiveFloat = 0.8, high: PositiveFloat = 1.2) -> None:
        super().__init__(scale=scale)
        self.low = low
        self.high = high

    def bias(self, excess: Tensor) -> Tensor:
        """Compute the factor, between ``low`` and ``high``, that multiplies ``scale`` for each example, shape (B,)."""
        return excess.exp().clamp(self.low, self.high)
