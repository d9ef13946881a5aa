"""The last layers of deep energies, which map features to one number."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import elu

from eblvm_lit.core.tensors import at_least_float32

__all__ = ["QuadraticHead", "SquaredNormHead"]


class SquaredNormHead(nn.Linear):
    r"""A nonnegative head: the squared norm of a linear layer followed by ELU (Bao et al. 2020, section 5.2, and code).

    .. math:: x \mapsto \sum_k \mathrm{ELU}(A x + a)_k^2

    Args:
        in_dim: The size of x.
        width: The number of rows of A.

    Example:
        >>> SquaredNormHead(in_dim=6, width=4)(torch.zeros(7, 5, 6)).shape
        torch.Size([7, 5])
    """

    def __init__(self, *, in_dim: int, width: int) -> None:
        super().__init__(in_dim, width)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the squared norm, shape (*B,), for features x (*B, in_dim)."""
        return self.squared_norm(super().forward(x))

    @staticmethod
    def squared_norm(y: Tensor) -> Tensor:
        r"""Compute the squared norm :math:`\sum_k \mathrm{ELU}(y_k)^2` of ELU(y), shape (*B,), for y = A x + a."""
        return elu(at_least_float32(y)).square().sum(-1)


class QuadraticHead(nn.Module):
    r"""A quadratic head: the product of two linear functions of features f plus a linear function of their squares.

    .. math:: f \mapsto (w_1^\top f + b_1)(w_2^\top f + b_2) + w_3^\top (f \circ f) + b_3

    Reference: Li et al. 2019, code.

    Args:
        in_dim: The size of f.

    Example:
        >>> QuadraticHead(in_dim=6)(torch.zeros(7, 5, 6)).shape
        torch.Size([7, 5])
    """

    def __init__(self, *, in_dim: int) -> None:
        super().__init__()
        self.first, self.second, self.square = (nn.Linear(in_dim, 1) for _ in range(3))

    def forward(self, f: Tensor) -> Tensor:
        """Compute the quadratic function of f (*B, in_dim), shape (*B,)."""
        f = at_least_float32(f)
        # Sums over thousands of features are too inaccurate in half precision, so autocast is disabled.
        with torch.autocast(f.device.type, enabled=False):
            value = self.first(f) * self.second(f) + self.square(f.square())
        return value.squeeze(-1)
