"""The base class of lower-level divergences of q(h|v) from p(h|v)."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from pydantic import PositiveInt
from torch import Tensor

from eblvm_lit.energies.base import Energy
from eblvm_lit.errors import ConfigError
from eblvm_lit.posteriors.base import Posterior

__all__ = ["Divergence"]


class Divergence(ABC):
    """A divergence of q(h|v) from p(h|v), estimated with reparametrised latents.

    The estimate may omit a term that depends only on v.

    Args:
        n_particles: The number L of latents drawn from q(h|v) for each v.

    Attributes:
        curved_as_information: Whether the divergence's Hessian in phi equals the Fisher information of q where q = p.
    """

    curved_as_information = False

    def __init__(self, *, n_particles: PositiveInt = 1) -> None:
        self.n_particles = n_particles

    def check(self, posterior: Posterior) -> None:
        """Raise a ConfigError if this divergence cannot train the posterior.

        Raises:
            ConfigError: If the latents have no gradient, so that only the noise of the estimate would move q.
        """
        if not posterior.reparametrised:
            raise ConfigError(
                "With posterior.temperature=0 the latents are bits without a gradient, so that q would not be fitted: "
                "choose a temperature above 0, such as 0.1."
            )

    def noise(self, posterior: Posterior, v: Tensor, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draw the noise of the latents that :meth:`loss` needs, shape (*shape, L, B, H)."""
        return posterior.noise((*shape, self.n_particles), v, generator)

    @abstractmethod
    def loss(self, energy: Energy, posterior: Posterior, v: Tensor, noise: Tensor) -> Tensor:
        """Estimate the divergence of each example, shape (B,), from v (B, *event) and noise (L, B, H)."""
