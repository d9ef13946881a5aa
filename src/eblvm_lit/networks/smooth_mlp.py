"""The multilayer perceptron of latents, with smooth units."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from eblvm_lit.errors import ConfigError

__all__ = ["SmoothMLP"]


class SmoothMLP(nn.Module):
    """Linear layers with a GELU between two: a function of latents that is smooth, as Langevin dynamics need it.

    With one output it is the f of a prior of latents, with as many as v has dimensions a generator of vectors.

    Args:
        sizes: Number of latents, width of each hidden layer, and number of outputs.

    Raises:
        ConfigError: With fewer than two sizes, or one below 1.

    Example:
        >>> import torch
        >>> generator = SmoothMLP(sizes=[3, 8, 2])
        >>> generator(torch.zeros(5, 3)).shape, generator.h_dim, generator.event_shape
        (torch.Size([5, 2]), 3, (2,))
    """

    def __init__(self, *, sizes: Sequence[int]) -> None:
        super().__init__()
        if len(sizes) < 2 or min(sizes) < 1:
            raise ConfigError(f"An MLP of latents needs an input and an output size >= 1, not {list(sizes)}.")
        self.h_dim, self.event_shape = sizes[0], (sizes[-1],)
        layers: list[nn.Module] = []
        for n_in, n_out in pairwise(sizes):
            layers += [nn.Linear(n_in, n_out), nn.GELU()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, h: Tensor) -> Tensor:
        """The outputs, shape (B, sizes[-1]), of latents h (B, sizes[0])."""
        return self.layers(h)
