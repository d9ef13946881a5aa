"""Sources of the latents of a variational estimate: q(h|v), q refined by Langevin steps, and p(h|v)."""

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

__all__ = ["ExactParticles", "Particles", "PosteriorParticles", "RefinedParticles"]

# A posterior's latents are of order one.
DIVERGED = 1e4


class Particles(ABC):
    """Draws h given v, with noise that is drawn outside; nothing is differentiated through the draw.

    Attributes:
        needs_posterior: Whether h come from a q(h|v) that has to be fitted.
        follow_posterior: Whether h are distributed as q(h|v).
    """

    needs_posterior = True
    follow_posterior = True

    def check(self, energy: Energy) -> None:  # noqa: B027 - most fit every energy
        """Refuse an energy whose latents cannot be drawn so."""

    @abstractmethod
    def noise(self, energy: Energy, posterior: Posterior | None, shape: tuple[int, ...], v: Tensor, generator) -> Any:
        """Noise of ``shape`` latents for each v (B, *event)."""

    @abstractmethod
    def draw(self, energy: Energy, posterior: Posterior | None, v: Tensor, noise: Any) -> Tensor:
        """Latents, shape (*shape, B, H)."""

    def diagnostics(self, h: Tensor, minibatch: Minibatch = WHOLE) -> dict[str, Tensor]:
        """Numbers to record about the draw h, by name."""
        return {}

    def failure_hint(self) -> str | None:
        """What helps where a diagnostic is not finite."""
        return None


class PosteriorParticles(Particles):
    """h ~ q(h|v), relaxed where the posterior relaxes.

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
        """The posterior's noise."""
        return posterior.noise(shape, v, generator)

    def draw(self, energy: Energy, posterior: Posterior, v: Tensor, noise: Tensor) -> Tensor:
        """h ~ q(h|v)."""
        return posterior.rsample(v, noise).detach()


class RefinedParticles(Particles):
    r"""h ~ q(h|v), then C Langevin steps towards p(h|v).

    .. math:: h \leftarrow h - \tfrac a2 \nabla_h E(v, h) + s\, \epsilon

    Reference: Bao et al. 2021, section 3.3 and appendix G.

    Args:
        n_refine_steps: C.
        step_size: a, about 2e-4 times the number of latents; a little beyond twice of that diverges.
        noise_std: s, apart from a.

    Raises:
        ConfigError: For binary latents.
    """

    def __init__(
        self, *, n_refine_steps: NonNegativeInt, step_size: PositiveFloat, noise_std: NonNegativeFloat
    ) -> None:
        self.langevin = Langevin(n_steps=n_refine_steps, step_size=step_size, noise_std=noise_std)
        self.follow_posterior = n_refine_steps == 0

    def check(self, energy: Energy) -> None:
        """Refuse binary latents."""
        if not energy.continuous:
            raise ConfigError(
                f"Langevin refinement needs continuous latents, {type(energy).__name__} has binary ones: "
                "use particles=posterior."
            )

    def noise(
        self, energy: Energy, posterior: Posterior, shape: tuple[int, ...], v: Tensor, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """The posterior's noise and that of each step."""
        start = posterior.noise(shape, v, generator)
        return {"start": start, "steps": self.langevin.noise(start, generator)}

    def draw(self, energy: Energy, posterior: Posterior, v: Tensor, noise: dict[str, Tensor]) -> Tensor:
        """The refined latents."""
        h = posterior.rsample(v, noise["start"]).detach()
        energy_at_v = energy.at(v)
        (refined,) = self.langevin.run(lambda h: energy_at_v(h).sum(), (h,), (noise["steps"],))
        return refined

    def diagnostics(self, h: Tensor, minibatch: Minibatch = WHOLE) -> dict[str, Tensor]:
        """Root mean square of the refined latents, infinite once they are far beyond any posterior."""
        rms = minibatch.mean(h.square().mean()).sqrt()
        return {"refined_rms": torch.where(rms > DIVERGED, math.inf, rms)}

    def failure_hint(self) -> str:
        """What helps where they diverge."""
        return (
            f"the Langevin refinement diverges with step_size={self.langevin.step_size:g}; take a smaller "
            "particles.step_size, about 2e-4 times the number of latents (2e-3 to 6e-3 for 20, 5e-3 to 1.5e-2 for 50, "
            "2e-2 for 100)."
        )


class ExactParticles(Particles):
    """h ~ p(h|v) itself: the upper bound of what any q can do, where the model can be drawn from.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> p, v, particles = GRBM(v_dim=2, h_dim=3), torch.zeros(5, 2), ExactParticles()
        >>> particles.draw(p, None, v, particles.noise(p, None, (7,), v, torch.Generator())).shape
        torch.Size([7, 5, 3])
    """

    needs_posterior = False
    follow_posterior = False

    def check(self, energy: Energy) -> None:
        """Refuse an energy without conditionals."""
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
        """The conditional's noise."""
        return energy.latent_noise((*shape, len(v)), v, generator)

    def draw(self, energy: ConditionalEnergy, posterior: Posterior | None, v: Tensor, noise: Tensor) -> Tensor:
        """h ~ p(h|v)."""
        return energy.draw_latent(v, noise).detach()
