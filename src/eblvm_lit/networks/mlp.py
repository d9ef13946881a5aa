"""The multilayer perceptron."""

from __future__ import annotations

from functools import partial

from pydantic import NonNegativeFloat
from torch import Tensor, nn

from eblvm_lit.core.ranges import Sizes
from eblvm_lit.networks.layers import linear_layers

__all__ = ["MLP"]


class MLP(nn.Module):
    """Linear layers with a leaky rectifier after each.

    Args:
        sizes: Width of the input, of each hidden layer and of the output.
        negative_slope: Slope of the rectifier below zero.

    Example:
        >>> import torch
        >>> MLP(sizes=[2, 8, 4])(torch.zeros(5, 2)).shape
        torch.Size([5, 4])
    """

    def __init__(self, *, sizes: Sizes, negative_slope: NonNegativeFloat = 0.2) -> None:
        super().__init__()
        self.event_shape = (sizes[0],)
        self.out_dim = sizes[-1]
        self.layers = nn.Sequential(*linear_layers(sizes, partial(nn.LeakyReLU, negative_slope)))

    def forward(self, x: Tensor) -> Tensor:
        """Features, shape (B, sizes[-1]), of x (B, *event) flattened."""
        return self.layers(x.flatten(1))
