"""Sources of the latents in a variational estimate: q(h|v), q refined by Langevin steps, or p(h|v)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat
from torch import Tensor

from eblvm_lit.core.minibatch import WHOLE, Minibatch
from eblvm_lit.energies.base import ConditionalEnergy, Energy
from eblvm_lit.errors import ConfigError
from eblvm_lit.posteriors.base import Posterior
from eblvm_lit.samplers.langevin import Langevin
from eblvm_lit.samplers.latent_chains import posterior_energy

__all__ = ["ExactParticles", "Particles", "PosteriorParticles", "RefinedParticles"]

# Posterior latents are of order one. If their root mean square exceeds this value, the Langevin steps have diverged.
DIVERGED = 1e4


class Particles(ABC):
    """The base class of sources that draw latents h given v.

    The noise is drawn beforehand and passed in. No gradient goes through the drawn latents.

    Attributes:
        needs_posterior: Whether the latents are drawn with a posterior q(h|v), which has to be fitted.
        follow_posterior: Whether the latents are distributed as q(h|v).
    """

    needs_posterior = True
    follow_posterior = True

    def check(self, energy: Energy) -> None:  # noqa: B027 - most sources fit every energy
        """Raise a ConfigError if this source cannot sample the latents of this energy."""

    @abstractmethod
    def noise(self, energy: Energy, posterior: Posterior | None, shape: tuple[int, ...], v: Tensor, generator) -> Any:
        """Draw the noise that :meth:`draw` turns into latents (*shape, B, H) given v (B, *event)."""

    @abstractmethod
    def draw(self, energy: Energy, posterior: Posterior | None, v: Tensor, noise: Any) -> Tensor:
        """Turn the noise into latents h given v, shape (*shape, B, H)."""

    def diagnostics(self, h: Tensor, minibatch: Minibatch = WHOLE) -> dict[str, Tensor]:
        """Return a dict of the diagnostics of the drawn latents h, which a run records."""
        return {}

    def failure_hint(self) -> str | None:
        """Return advice that is shown if a diagnostic is not finite, or None if there is no advice."""
        return None


class PosteriorParticles(Particles):
    """Latents drawn from the posterior q(h|v). Binary latents are relaxed if the posterior relaxes its samples.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.posteriors.bernoulli import BernoulliPosterior
        >>> p, q, v = GRBM(v_dim=2, h_dim=3), BernoulliPosterior(v_dim=2, h_dim=3), torch.zeros(5, 2)
        >>> particles = PosteriorParticles()
        >>> particles.draw(p, q, v, particles.noise(p, q, (7,), v, torch.Generator())).shape
        torch.Size([7, 5, 3])
    """

    def noise(
        self, energy: Energy, posterior: Posterior, shape: tuple[int, ...], v: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Draw the noise from which samples of the posterior are computed."""
        return posterior.noise(shape, v, generator)

    def draw(self, energy: Energy, posterior: Posterior, v: Tensor, noise: Tensor) -> Tensor:
        """Draw latents h ~ q(h|v), shape (*shape, B, H)."""
        return posterior.rsample(v, noise).detach()


class RefinedParticles(Particles):
    r"""Latents drawn from q(h|v) and moved by C Langevin steps towards p(h|v).

    .. math:: h \leftarrow h - \tfrac a2 \nabla_h E(v, h) + s\, \epsilon

    Reference: Bao et al. 2021, section 3.3 and appendix G.

    Args:
        n_refine_steps: The number C of Langevin steps.
        step_size: The step size a. About 2e-4 times the number of latents works; a little more than twice this value
            diverges.
        noise_std: The standard deviation s of the noise, which is set independently of a.

    Raises:
        ConfigError: If the latents are binary.
    """

    def __init__(
        self, *, n_refine_steps: NonNegativeInt, step_size: PositiveFloat, noise_std: NonNegativeFloat
    ) -> None:
        self.langevin = Langevin(n_steps=n_refine_steps, step_size=step_size, noise_std=noise_std)
        self.follow_posterior = n_refine_steps == 0

    def check(self, energy: Energy) -> None:
        """Raise a ConfigError if the latents are binary."""
        if not energy.continuous:
            raise ConfigError(
                f"Langevin refinement needs continuous latents, {type(energy).__name__} has binary ones: "
                "use particles=posterior."
            )

    def noise(
        self, energy: Energy, posterior: Posterior, shape: tuple[int, ...], v: Tensor, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Draw the noise of the posterior's samples and the noise of each Langevin step."""
        start = posterior.noise(shape, v, generator)
        return {"start": start, "steps": self.langevin.noise(start, generator)}

    def draw(self, energy: Energy, posterior: Posterior, v: Tensor, noise: dict[str, Tensor]) -> Tensor:
        """Return the latents after the Langevin steps, shape (*shape, B, H)."""
        h = posterior.rsample(v, noise["start"]).detach()
        return self.langevin.run(posterior_energy(energy, v), (h,), (noise["steps"],))[0]

    def diagnostics(self, h: Tensor, minibatch: Minibatch = WHOLE) -> dict[str, Tensor]:
        """Return the root mean square of the refined latents, or infinity if they have diverged."""
        rms = minibatch.mean(h.square().mean()).sqrt()
        return {"refined_rms": torch.where(rms > DIVERGED, math.inf, rms)}

    def failure_hint(self) -> str:
        """Return advice for latents that diverge during the refinement."""
        return (
            f"the Langevin refinement diverges with step_size={self.langevin.step_size:g}; take a smaller "
            "particles.step_size, about 2e-4 times the number of latents (2e-3 to 6e-3 for 20, 5e-3 to 1.5e-2 for 50, "
            "2e-2 for 100)."
        )


class ExactParticles(Particles):
    """Latents drawn from the exact posterior p(h|v), for a model that can sample it.

    Results with these latents show the best that a learned q(h|v) could achieve.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> p, v, particles = GRBM(v_dim=2, h_dim=3), torch.zeros(5, 2), ExactParticles()
        >>> particles.draw(p, None, v, particles.noise(p, None, (7,), v, torch.Generator())).shape
        torch.Size([7, 5, 3])
    """

    needs_posterior = False
    follow_posterior = False

    def check(self, energy: Energy) -> None:
        """Raise a ConfigError if p(h|v) cannot be sampled."""
        if not isinstance(energy, ConditionalEnergy):
            raise ConfigError(
                f"{type(energy).__name__} has no p(h|v) to draw from, which particles=exact needs: "
                "use particles=posterior or particles=refined."
            )

    def noise(
        self,
        energy: ConditionalEnergy,
        posterior: Posterior | None,
        shape: tuple[int, ...],
        v: Tensor,
        generator: torch.Generator,
    ) -> Tensor:
        """Draw the noise from which latents h ~ p(h|v) are computed."""
        return energy.latent_noise((*shape, len(v)), v, generator)

    def draw(self, energy: ConditionalEnergy, posterior: Posterior | None, v: Tensor, noise: Tensor) -> Tensor:
        """Draw latents h ~ p(h|v), shape (*shape, B, H)."""
        return energy.draw_latent(v, noise).detach()
