"""The base class of the noise distributions of noise-contrastive estimation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import torch
from torch import Tensor, nn

__all__ = ["NoiseDistribution"]


class NoiseDistribution(nn.Module, ABC):
    """p_n(y): a fixed distribution of v with a known density, sampled with noise that is drawn outside."""

    def __init__(self) -> None:
        super().__init__()

    def prepare(self, event_shape: tuple[int, ...]) -> None:
        """Make room for what :meth:`fit` finds, so that a checkpoint can be loaded into it."""

    def fit(self, batches: Iterable[Tensor]) -> None:
        """Adapt to the training split, in batches (B, *event); once, at the start of a run."""

    def noise(self, shape: tuple[int, ...], v: Tensor, generator: torch.Generator) -> Tensor:
        """Standard normal numbers, shape (*shape, *v.shape), of v's type and device."""
        return torch.randn((*shape, *v.shape), generator=generator, dtype=v.dtype, device=v.device)

    @abstractmethod
    def sample(self, noise: Tensor) -> Tensor:
        """y ~ p_n, shape (B, *event), of noise of that shape."""

    @abstractmethod
    def log_prob(self, y: Tensor) -> Tensor:
        """log p_n(y), shape (B,), of y (B, *event)."""
