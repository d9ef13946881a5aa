"""The parts of a method: what metrics, figures and samplers ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

from torch import Tensor, nn

from eblvm_lit.core.functional import Params
from eblvm_lit.divergences.base import Divergence
from eblvm_lit.energies.base import Energy
from eblvm_lit.energies.latent_prior import LatentPriorEnergy
from eblvm_lit.objectives.base import Objective
from eblvm_lit.posteriors.base import Posterior

__all__ = ["MethodParts"]


class MethodParts(NamedTuple):
    """What a method trains, and what it trains by: what metrics, figures and samplers ask for.

    Attributes:
        energy: E(v, h) or F(v); None for a method without an energy, as the VAE.
        posterior: q(h|v), or BiDVL's encoder.
        generator: A module that maps h (B, H) to v (B, *event).
        objective: The functional of the score that is minimised.
        divergence: What fits the posterior.
        log_z: A learned estimate of the energy's log Z, a number.
        encoder: A module that maps v (B, *event) to h (B, H) where there is no posterior, as Langevin chains do.
        prior_statistics: A function that gives the running statistics which the generator's batch normalisation has at
            latents of the prior, by the names of its buffers; they are needed to draw samples.
    """

    energy: Energy | None = None
    posterior: Posterior | None = None
    generator: nn.Module | None = None
    objective: Objective | None = None
    divergence: Divergence | None = None
    log_z: Tensor | None = None
    encoder: nn.Module | None = None
    prior_statistics: Callable[[], Params] = dict

    @property
    def decoding(self) -> nn.Module | None:
        """What maps h (B, H) to v (B, *event): the generator, or that of an energy with a prior of latents."""
        energy = self.energy
        return cast(nn.Module, energy.generator) if isinstance(energy, LatentPriorEnergy) else self.generator

    @property
    def encoding(self) -> Any:
        """What maps v (B, *event) to h (B, H): the posterior, whose mean it gives, or the encoder; None without."""
        return self.posterior if self.posterior is not None else self.encoder
