"""The multilayer perceptron of latents, with smooth units."""

from __future__ import annotations

from torch import Tensor, nn

from eblvm_lit.core.ranges import Sizes
from eblvm_lit.networks.layers import linear_layers

__all__ = ["SmoothMLP"]


class SmoothMLP(nn.Module):
    """Linear layers with a GELU between two: a function of latents that is smooth, as Langevin dynamics need it.

    With one output it is the f of a prior of latents, with as many as v has dimensions a generator of vectors.

    Args:
        sizes: Number of latents, width of each hidden layer, and number of outputs.

    Example:
        >>> import torch
        >>> generator = SmoothMLP(sizes=[3, 8, 2])
        >>> generator(torch.zeros(5, 3)).shape, generator.h_dim, generator.event_shape
        (torch.Size([5, 2]), 3, (2,))
    """

    def __init__(self, *, sizes: Sizes) -> None:
        super().__init__()
        self.h_dim = sizes[0]
        self.event_shape = (sizes[-1],)
        self.layers = nn.Sequential(*linear_layers(sizes, nn.GELU)[:-1])

    def forward(self, h: Tensor) -> Tensor:
        """The outputs, shape (B, sizes[-1]), of latents h (B, sizes[0])."""
        return self.layers(h)
