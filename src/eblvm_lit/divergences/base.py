"""The base class of lower-level divergences of q(h|v) from p(h|v)."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from pydantic import PositiveInt
from torch import Tensor

from eblvm_lit.energies.base import Energy
from eblvm_lit.posteriors.base import Posterior

__all__ = ["Divergence"]


class Divergence(ABC):
    """A divergence of q(h|v) from p(h|v), up to a constant of v, estimated with reparametrised particles.

    Args:
        n_particles: Number of particles L.

    Attributes:
        curved_as_information: Whether its Hessian in phi is the Fisher information of q where q = p.
    """

    curved_as_information = False

    def __init__(self, *, n_particles: PositiveInt = 1) -> None:
        self.n_particles = n_particles

    def check(self, posterior: Posterior) -> None:  # noqa: B027 - most fit every posterior
        """Refuse a posterior this divergence cannot train."""

    def noise(self, posterior: Posterior, v: Tensor, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Noise for :meth:`loss`, shape (*shape, L, B, H)."""
        return posterior.noise((*shape, self.n_particles), v, generator)

    @abstractmethod
    def loss(self, energy: Energy, posterior: Posterior, v: Tensor, noise: Tensor) -> Tensor:
        """Estimate per example, shape (B,), of v (B, *event) and noise (L, B, H)."""
