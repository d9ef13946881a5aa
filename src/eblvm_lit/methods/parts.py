"""The components of a method that metrics, figures and samplers use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

from torch import Tensor, nn

from eblvm_lit.core.functional import Params
from eblvm_lit.divergences.base import Divergence
from eblvm_lit.energies.base import Energy, ExactLatentEnergy, LatentMeans
from eblvm_lit.energies.latent_prior import LatentPriorEnergy
from eblvm_lit.objectives.base import Objective
from eblvm_lit.posteriors.base import Posterior

__all__ = ["MethodParts"]


class MethodParts(NamedTuple):
    """The networks and losses of a method. A network or a loss that the method does not have is None.

    Attributes:
        energy: The energy E(v, h) or F(v); None for a method without an energy, such as the VAE.
        posterior: The posterior q(h|v), or BiDVL's encoder.
        generator: A module that maps h (B, H) to v (B, *event).
        objective: The functional of the score that is minimised.
        divergence: The divergence that the lower level minimises to fit the posterior.
        log_z: An estimate of the energy's log Z that the method learns, a scalar.
        encoder: A module that maps v (B, *event) to h (B, H) for a method without a posterior, such as Langevin chains.
        prior_statistics: A function that returns the running statistics of the generator's batch normalisation for
            latents drawn from the prior, by the names of the buffers; samples are generated with them.
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
        """Return the module that maps latents h (B, H) to v (B, *event), or None if there is none.

        The module is the generator inside a latent-prior energy, or else the method's generator.
        """
        energy = self.energy
        return cast(nn.Module, energy.generator) if isinstance(energy, LatentPriorEnergy) else self.generator

    @property
    def encoding(self) -> Any:
        """Return the module that maps v (B, *event) to latents h (B, H), or None if there is none.

        The module is the posterior, the method's encoder, or the known posterior mean of the energy.
        """
        own = self.posterior if self.posterior is not None else self.encoder
        return LatentMeans(self.energy) if own is None and isinstance(self.energy, ExactLatentEnergy) else own
