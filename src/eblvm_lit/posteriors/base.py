"""What every variational posterior offers."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

__all__ = ["DistributionParams", "Posterior"]

DistributionParams = tuple[Tensor, ...]


class Posterior(nn.Module, ABC):
    """q(h|v; phi), sampled with noise that is drawn outside.

    Attributes:
        h_dim: Number of latents.
        continuous: Whether grad_h log q(h|v) means something; false for (relaxed) binary latents.
    """

    h_dim: int
    continuous: bool

    def extra_repr(self) -> str:
        """The size, for ``print``."""
        return f"h_dim={self.h_dim}"

    @abstractmethod
    def noise(self, shape: tuple[int, ...], v: Tensor, generator: torch.Generator) -> Tensor:
        """Noise for :meth:`rsample`, shape (*shape, B, H), of v's type and device."""

    @abstractmethod
    def distribution_params(self, v: Tensor) -> DistributionParams:
        """Parameters of q(h|v) as a distribution, each of shape (B, H): what costs a pass through the posterior."""

    @abstractmethod
    def rsample_given(self, q_params: DistributionParams, noise: Tensor) -> Tensor:
        """Reparametrised h, shape (*L, B, H), of q's parameters and noise (*L, B, H)."""

    @abstractmethod
    def log_prob_given(self, q_params: DistributionParams, h: Tensor) -> Tensor:
        """log q(h), shape (*L, B), of q's parameters and h (*L, B, H)."""

    @abstractmethod
    def information_given(self, q_params: DistributionParams) -> DistributionParams:
        """Fisher information of h about these parameters, which is diagonal, each of shape (B, H)."""

    def rsample(self, v: Tensor, noise: Tensor) -> Tensor:
        """Reparametrised h ~ q(h|v), shape (*L, B, H), of v (B, *event) and noise (*L, B, H)."""
        return self.rsample_given(self.distribution_params(v), noise)

    def log_prob(self, h: Tensor, v: Tensor) -> Tensor:
        """log q(h|v), shape (*L, B), of h (*L, B, H) and v (B, *event)."""
        return self.log_prob_given(self.distribution_params(v), h)

    def rsample_and_log_prob(self, v: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """h ~ q(h|v) and log q(h|v), in one pass through the posterior."""
        q_params = self.distribution_params(v)
        h = self.rsample_given(q_params, noise)
        return h, self.log_prob_given(q_params, h)

    @abstractmethod
    def mean(self, v: Tensor) -> Tensor:
        """E_q[h|v], shape (B, H)."""

    def forward(self, v: Tensor) -> Tensor:
        """The posterior mean; see :meth:`mean`."""
        return self.mean(v)
