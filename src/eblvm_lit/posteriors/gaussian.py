"""Gaussian latents with a diagonal covariance."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor, nn

from eblvm_lit.core.functional import at_least_float32
from eblvm_lit.posteriors.base import DistributionParams, Posterior

__all__ = ["GaussianPosterior", "LinearGaussianPosterior", "NetworkGaussianPosterior"]


class GaussianPosterior(Posterior):
    r"""q(h|v) = N(mean(v), diag exp(2 log_std(v))), :math:`h = \mathrm{mean} + e^{\mathrm{log\,std}} \epsilon`."""

    continuous = True

    @abstractmethod
    def moments(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation, each of shape (B, H)."""

    def noise(self, shape: tuple[int, ...], v: Tensor, generator: torch.Generator) -> Tensor:
        """Standard normal numbers, shape (*shape, B, H)."""
        size = (*shape, len(v), self.h_dim)
        return torch.randn(size, generator=generator, dtype=v.dtype, device=v.device)

    def distribution_params(self, v: Tensor) -> DistributionParams:
        """Mean and log standard deviation."""
        return self.moments(v)

    def rsample_given(self, q_params: DistributionParams, noise: Tensor) -> Tensor:
        """Reparametrised h, shape (*L, B, H)."""
        mean, log_std = q_params
        return mean + log_std.exp() * noise

    def log_prob_given(self, q_params: DistributionParams, h: Tensor) -> Tensor:
        """log q(h), shape (*L, B)."""
        mean, log_std = q_params
        standardised = (h - mean) * (-log_std).exp()
        return (-0.5 * standardised.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)

    def information_given(self, q_params: DistributionParams) -> DistributionParams:
        """1 / std^2 about the mean, 2 about the log standard deviation."""
        return (-2 * q_params[1]).exp(), torch.full_like(q_params[1], 2.0)

    def mean(self, v: Tensor) -> Tensor:
        """E_q[h|v], shape (B, H)."""
        return self.moments(v)[0]


class LinearGaussianPosterior(GaussianPosterior):
    r"""q(h|v) = N(A v + a, diag s^2), s the same for every v (Bao et al. 2021, appendix F.4).

    Args:
        v_dim: Size of v.
        h_dim: Number of latents.

    Example:
        >>> LinearGaussianPosterior(v_dim=2, h_dim=3).mean(torch.zeros(5, 2)).shape
        torch.Size([5, 3])
    """

    def __init__(self, *, v_dim: int, h_dim: int) -> None:
        super().__init__()
        self.h_dim = h_dim
        self.linear = nn.Linear(v_dim, h_dim)
        self.log_std = nn.Parameter(torch.zeros(h_dim))

    def moments(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation, each of shape (B, H)."""
        mean = at_least_float32(self.linear(v))
        return mean, self.log_std.expand_as(mean)


class NetworkGaussianPosterior(GaussianPosterior):
    """q(h|v) whose mean and log standard deviation are linear in the features of a network.

    Args:
        network: Maps v (B, *event) to features (B, network.out_dim).
        h_dim: Number of latents.

    Example:
        >>> from eblvm_lit.networks.mlp import MLP
        >>> q = NetworkGaussianPosterior(network=MLP(sizes=[2, 8, 8]), h_dim=3)
        >>> q.mean(torch.zeros(5, 2)).shape
        torch.Size([5, 3])
    """

    def __init__(self, *, network: nn.Module, h_dim: int) -> None:
        super().__init__()
        self.h_dim, self.network = h_dim, network
        self.mean_head = nn.Linear(network.out_dim, h_dim)
        self.log_std_head = nn.Linear(network.out_dim, h_dim)

    def moments(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation, each of shape (B, H)."""
        features = self.network(v)
        return at_least_float32(self.mean_head(features)), at_least_float32(self.log_std_head(features))
