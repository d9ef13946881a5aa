"""The base class of the noise distributions for noise-contrastive estimation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import torch
from torch import Tensor, nn

__all__ = ["NoiseDistribution"]


class NoiseDistribution(nn.Module, ABC):
    """A fixed distribution p_n(y) on the space of v that has a known density and can be sampled.

    Samples are computed from noise that the caller draws.

    Attributes:
        of_bits: Whether samples are bits.
    """

    of_bits = False

    def __init__(self) -> None:
        super().__init__()

    def prepare(self, event_shape: tuple[int, ...]) -> None:
        """Create the buffers that :meth:`fit` fills, so that a checkpoint can be loaded into them."""

    def fit(self, batches: Iterable[Tensor]) -> None:
        """Fit the distribution p_n to batches (B, *event) of the training split.

        A run calls this method once, when it starts.
        """

    def noise(self, shape: tuple[int, ...], v: Tensor, generator: torch.Generator) -> Tensor:
        """Draw standard normal numbers, shape (*shape, *v.shape), with v's dtype and device."""
        return torch.randn((*shape, *v.shape), generator=generator, dtype=v.dtype, device=v.device)

    @abstractmethod
    def sample(self, noise: Tensor) -> Tensor:
        """Transform standard normal noise (B, *event) into samples y ~ p_n of the same shape."""

    @abstractmethod
    def log_prob(self, y: Tensor) -> Tensor:
        """Compute the log-density log p_n(y) of each y, shape (B,), for y (B, *event)."""
