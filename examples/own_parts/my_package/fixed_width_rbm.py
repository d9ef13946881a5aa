"""An energy: a restricted Boltzmann machine with a given standard deviation of its visible units."""

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from eblvm_lit.energies.base import MarginalEnergy


class FixedWidthRBM(MarginalEnergy):
    """The energy E(v, h) = |v - b|^2 / (2 sigma^2) - h . (c + W' v), with binary h.

    Args:
        v_dim: Number of visible units d.
        h_dim: Number of latent units m.
        std: sigma, in the units of v.
    """

    continuous = False  # h is binary

    def __init__(self, *, v_dim: int, h_dim: int, std: float) -> None:
        super().__init__()
        self.event_shape = (v_dim,)
        self.h_dim = h_dim
        self.std = std
        self.W = nn.Parameter(torch.randn(v_dim, h_dim))
        self.b = nn.Parameter(torch.zeros(v_dim))
        self.c = nn.Parameter(torch.zeros(h_dim))

    def energy(self, v: Tensor, h: Tensor) -> Tensor:
        """Compute E(v, h), shape (*L, B), of v (B, d) and h (*L, B, m)."""
        return self._quadratic(v) - (h * self._logits(v)).sum(-1)

    def free_energy(self, v: Tensor) -> Tensor:
        """Compute F(v) = |v - b|^2 / (2 sigma^2) - sum_j log(1 + exp(c + W' v)_j), shape (B,)."""
        return self._quadratic(v) - softplus(self._logits(v)).sum(-1)

    def _quadratic(self, v: Tensor) -> Tensor:
        return 0.5 * ((v - self.b) / self.std).square().sum(-1)

    def _logits(self, v: Tensor) -> Tensor:
        return self.c + v @ self.W
