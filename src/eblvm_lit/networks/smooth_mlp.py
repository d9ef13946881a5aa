"""A multilayer perceptron of latents with smooth activations."""

from __future__ import annotations

from torch import Tensor, nn

from eblvm_lit.core.ranges import Sizes
from eblvm_lit.networks.layers import linear_layers

__all__ = ["SmoothMLP"]


class SmoothMLP(nn.Module):
    """A smooth function of latents, suitable for Langevin dynamics: linear layers with GELU between them.

    With one output it serves as the function f in an energy-based prior of latents; with d outputs it is a generator of
    vectors v of size d.

    Args:
        sizes: The number of latents, the width of each hidden layer, and the number of outputs.

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
        """Compute the outputs, shape (B, sizes[-1]), for latents h (B, sizes[0])."""
        return self.layers(h)
