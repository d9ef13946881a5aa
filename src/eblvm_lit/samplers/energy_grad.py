"""The gradient of an energy in several variables."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from eblvm_lit.core.functional import grad, plain_autograd

__all__ = ["energy_grad"]


def energy_grad(energy: Callable[..., Tensor], x: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The first-order gradient of a total energy in each of its variables.

    Args:
        energy: Maps the variables to a scalar.
        x: The variables.

    Example:
        >>> import torch
        >>> energy_grad(lambda x, y: (x * x * y).sum(), (torch.tensor([3.0]), torch.tensor([2.0])))
        (tensor([12.]), tensor([9.]))
    """
    with plain_autograd():
        return grad(energy, argnums=tuple(range(len(x))))(*x)
