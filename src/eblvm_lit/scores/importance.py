"""The score of a free energy that is estimated by importance sampling."""

from __future__ import annotations

import math

import torch
from pydantic import PositiveInt
from torch import Tensor

from eblvm_lit.core.functional import grad
from eblvm_lit.energies.base import Energy
from eblvm_lit.errors import ConfigError
from eblvm_lit.scores.base import ScoreEstimator

__all__ = ["Importance", "ImportanceScore"]


class ImportanceScore:
    r"""The score of an importance-sampling estimate of the free energy, with uniform binary latents.

    .. math:: s(v) = -\nabla_v \hat F(v), \quad
        \hat F(v) = -\log \frac1L \sum_{l=1}^L \frac{\exp(-E(v, h_l))}{2^{-m}}, \quad h_l \sim \mathrm{Bernoulli}(1/2)^m

    The estimate is biased for finite L. The VaGES paper compares with it. Reference: Bao et al. 2021, section 5.1
    (IS-KSD).

    Args:
        energy: The model's energy E(v, h), with m binary latents.
        h: The L latents drawn for each v, shape (L, B, m).

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> ImportanceScore(GRBM(v_dim=2, h_dim=3), torch.ones(7, 5, 3))(torch.zeros(5, 2)).shape
        torch.Size([5, 2])
    """

    def __init__(self, energy: Energy, h: Tensor) -> None:
        self.energy = energy
        self.h = h

    def free_energy(self, v: Tensor) -> Tensor:
        """Estimate the free energy F(v), shape (B,)."""
        n = len(self.h)
        m = self.h.shape[-1]
        return math.log(n) - m * math.log(2) - torch.logsumexp(-self.energy.energy(v, self.h), 0)

    def __call__(self, v: Tensor) -> Tensor:
        """Compute the score of the estimated free energy at v, shape (B, *event)."""
        return -grad(lambda x: self.free_energy(x).sum())(v)


class Importance(ScoreEstimator):
    """A score estimator that uses importance sampling, with new latents for each v in each evaluation.

    Args:
        n_particles: The number L of latents drawn for each v.

    Raises:
        ConfigError: In :meth:`check`, if the latents are continuous.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> score, energy, v = Importance(n_particles=7), GRBM(v_dim=2, h_dim=3), torch.zeros(5, 2)
        >>> score.function(energy, None, v, score.noise(energy, None, v, torch.Generator()))(v).shape
        torch.Size([5, 2])
    """

    words = "score by importance sampling"

    def __init__(self, *, n_particles: PositiveInt = 5) -> None:
        self.n_particles = n_particles

    def check(self, energy: Energy) -> None:
        """Raise a ConfigError if the latents are continuous, because they have no uniform distribution."""
        if energy.continuous:
            raise ConfigError(
                f"The importance-sampled score draws binary latents, {type(energy).__name__} has continuous ones: "
                "use a variational method."
            )

    def noise(self, energy: Energy, posterior: None, v: Tensor, generator: torch.Generator) -> Tensor:
        """Draw the binary latents from the uniform distribution, shape (L, B, m)."""
        shape = (self.n_particles, len(v), energy.h_dim)
        return torch.randint(2, shape, generator=generator, device=v.device).to(v.dtype)

    def function(self, energy: Energy, posterior: None, v: Tensor, noise: Tensor) -> ImportanceScore:
        """Return a function of v that estimates the score with the binary latents ``noise``."""
        return ImportanceScore(energy, noise)
