"""The multilayer perceptron with shortcuts."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from pydantic import NonNegativeFloat
from torch import Tensor, nn
from torch.nn.functional import elu, leaky_relu

from eblvm_lit.core.ranges import Sizes

__all__ = ["ResidualMLP"]


class _Block(nn.Module):
    """Two linear layers with a nonlinearity after each, beside a linear shortcut; the first keeps the width."""

    def __init__(self, n_in: int, n_out: int, negative_slope: float | None) -> None:
        super().__init__()
        self.first = nn.Linear(n_in, n_in)
        self.second = nn.Linear(n_in, n_out)
        self.shortcut = nn.Linear(n_in, n_out)
        self.negative_slope = negative_slope

    def activation(self, x: Tensor) -> Tensor:
        return elu(x) if self.negative_slope is None else leaky_relu(x, self.negative_slope)

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.second(self.activation(self.first(x)))) + self.shortcut(x)


class ResidualMLP(nn.Module):
    r"""Residual blocks with a nonlinearity a between them, and on request after the last.

    .. math:: x \mapsto a(A_2\, a(A_1 x + a_1) + a_2) + S x + s

    A_1 is square: the hidden width of a block is that of its input. With sizes 2, 100, 100, 100 it is the feature
    network of the published toy model (a = ELU, none after the last block) and of its posterior (a leaky rectifier,
    after the last block too). Reference: Bao et al. 2021, code.

    Args:
        sizes: Width of the input, and of each block's output.
        negative_slope: Slope below zero of a leaky rectifier; null: a is ELU.
        activate_last: Whether a is applied to the features, too.

    Example:
        >>> import torch
        >>> ResidualMLP(sizes=[2, 8, 4])(torch.zeros(5, 2)).shape
        torch.Size([5, 4])
    """

    def __init__(
        self, *, sizes: Sizes, negative_slope: NonNegativeFloat | None = None, activate_last: bool = False
    ) -> None:
        super().__init__()
        self.event_shape = (sizes[0],)
        self.out_dim = sizes[-1]
        self.activate_last = activate_last
        self.blocks: Any = nn.ModuleList(_Block(n_in, n_out, negative_slope) for n_in, n_out in pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        """Features, shape (B, sizes[-1]), of x (B, *event) flattened."""
        first, *others = self.blocks
        x = first(x.flatten(1))
        for block in others:
            x = block(block.activation(x))
        return first.activation(x) if self.activate_last else x
