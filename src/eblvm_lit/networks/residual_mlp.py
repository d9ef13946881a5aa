"""A multilayer perceptron of residual blocks."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from pydantic import NonNegativeFloat
from torch import Tensor, nn
from torch.nn.functional import elu, leaky_relu

from eblvm_lit.core.ranges import Sizes

__all__ = ["ResidualMLP"]


class _Block(nn.Module):
    """A residual block of two linear layers with an activation after each, and a linear shortcut.

    The first layer's output is as wide as its input.
    """

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
    r"""A feature network of residual blocks, with an activation a between blocks and optionally after the last block.

    .. math:: x \mapsto a(A_2\, a(A_1 x + a_1) + a_2) + S x + s

    The formula is that of one block. A_1 is square: the hidden width of a block equals the width of its input. With the
    sizes 2, 100, 100, 100 this is the feature network of the published toy model (a = ELU, not applied after the last
    block) and of that model's posterior (a = leaky ReLU, applied after the last block, too). Reference: Bao et al.
    2021, code.

    Args:
        sizes: The widths of the input and of each block's output.
        negative_slope: The slope of a leaky ReLU below zero; with null, a is ELU.
        activate_last: Whether a is applied to the last block's output, too.

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
        """Flatten x (B, *event) and compute its features, shape (B, sizes[-1])."""
        first, *others = self.blocks
        x = first(x.flatten(1))
        for block in others:
            x = block(block.activation(x))
        return first.activation(x) if self.activate_last else x
