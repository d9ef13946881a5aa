"""What every variational posterior offers."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

__all__ = ["Posterior"]


class Posterior(nn.Module, ABC):
    """q(h|v; phi), sampled with noise that is drawn outside.

    Attributes:
        h_dim: Number of latents.
        continuous: Whether grad_h log q(h|v) means something; false for (relaxed) binary latents.
    """

    h_dim: int
    continuous: bool

    @abstractmethod
    def noise(self, shape: tuple[int, ...], v: Tensor, generator: torch.Generator) -> Tensor:
        """Noise for :meth:`rsample`, shape (*shape, B, H), of v's type and device."""

    @abstractmethod
    def rsample(self, v: Tensor, noise: Tensor) -> Tensor:
        """Reparametrised h ~ q(h|v), shape (*L, B, H), of v (B, *event) and noise (*L, B, H)."""

    @abstractmethod
    def log_prob(self, h: Tensor, v: Tensor) -> Tensor:
        """log q(h|v), shape (*L, B), of h (*L, B, H) and v (B, *event)."""

    @abstractmethod
    def mean(self, v: Tensor) -> Tensor:
        """E_q[h|v], shape (B, H)."""

    def forward(self, v: Tensor) -> Tensor:
        """The posterior mean; see :meth:`mean`."""
        return self.mean(v)
