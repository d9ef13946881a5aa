"""What every variational posterior offers."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

__all__ = ["Law", "Posterior"]

Law = tuple[Tensor, ...]


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
    def law(self, v: Tensor) -> Law:
        """Parameters of q(h|v) as a distribution, each of shape (B, H): what costs a pass through the posterior."""

    @abstractmethod
    def rsample_law(self, law: Law, noise: Tensor) -> Tensor:
        """Reparametrised h, shape (*L, B, H), of a law and noise (*L, B, H)."""

    @abstractmethod
    def log_prob_law(self, law: Law, h: Tensor) -> Tensor:
        """log q(h), shape (*L, B), of a law and h (*L, B, H)."""

    @abstractmethod
    def information_law(self, law: Law) -> Law:
        """Fisher information of h about the parameters of a law, which is diagonal, each of shape (B, H)."""

    def rsample(self, v: Tensor, noise: Tensor) -> Tensor:
        """Reparametrised h ~ q(h|v), shape (*L, B, H), of v (B, *event) and noise (*L, B, H)."""
        return self.rsample_law(self.law(v), noise)

    def log_prob(self, h: Tensor, v: Tensor) -> Tensor:
        """log q(h|v), shape (*L, B), of h (*L, B, H) and v (B, *event)."""
        return self.log_prob_law(self.law(v), h)

    def rsample_and_log_prob(self, v: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """h ~ q(h|v) and log q(h|v), in one pass through the posterior."""
        law = self.law(v)
        h = self.rsample_law(law, noise)
        return h, self.log_prob_law(law, h)

    @abstractmethod
    def mean(self, v: Tensor) -> Tensor:
        """E_q[h|v], shape (B, H)."""

    def forward(self, v: Tensor) -> Tensor:
        """The posterior mean; see :meth:`mean`."""
        return self.mean(v)
