"""A multilayer perceptron that maps vectors to features."""

from __future__ import annotations

from functools import partial

from pydantic import NonNegativeFloat
from torch import Tensor, nn

from eblvm_lit.core.ranges import Sizes
from eblvm_lit.networks.layers import linear_layers

__all__ = ["MLP"]


class MLP(nn.Module):
    """A feature network of linear layers with a leaky ReLU after each.

    Args:
        sizes: The widths of the input, of each hidden layer and of the output.
        negative_slope: The slope of the leaky ReLU below zero.

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
        """Compute the features, shape (B, sizes[-1]), of x (B, *event), which is flattened first."""
        return self.layers(x.flatten(1))
