"""The Fisher divergence of data from a model whose score is estimated by a variational posterior."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from eblvm_lit.core.functional import Params, bind
from eblvm_lit.divergences.base import Divergence
from eblvm_lit.energies.base import Energy
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.critic import Critic
from eblvm_lit.methods.levels import Level
from eblvm_lit.methods.posterior_fit import PosteriorFit
from eblvm_lit.optimizers.base import Optimizer
from eblvm_lit.posteriors.base import Posterior
from eblvm_lit.scores.particles import PosteriorParticles
from eblvm_lit.scores.variational import VaES

__all__ = ["VaGESFisher"]


class VaGESFisher(Critic):
    r"""The Fisher divergence of the data from a model, by a critic that is given an estimate of the model's score.

    .. math:: \mathrm{VaES}(v) = -\frac1L \sum_{l=1}^L \nabla_v E(v, h_l), \quad h_l \sim q(h|v; \phi)

    An iteration is K steps on phi down the divergence of q(h|v) from p(h|v), then one on the critic. The bracket is
    linear in the score, so what matters of the estimate is its mean. Reference: Bao et al. 2021, section 4.3 and
    appendix F.3.

    Args:
        energy: The model; no level moves it.
        posterior: q.
        divergence: Of q from p.
        critic: A network that maps v (B, *event) to (B, *event).
        optimizer: Rule of the critic and of q.
        n_lower_steps: K.
        n_particles: L.
        residual: Whether f is the network added to :math:`-\nabla_v E(v, h)` at the mean h of q, which is VaES of many
            particles where E is linear in h; else it is the network alone, as published.
        seed: Seed of all noise.
        compile: Whether the iteration is compiled.

    Raises:
        ConfigError: For a negative K, L below one, or parts that do not fit together.

    Example:
        >>> from eblvm_lit.divergences.kl import KL
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.networks.vector_field import VectorField
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> from eblvm_lit.posteriors.bernoulli import BernoulliPosterior
        >>> method = VaGESFisher(
        ...     energy=GRBM(v_dim=2, h_dim=3), posterior=BernoulliPosterior(v_dim=2, h_dim=3), divergence=KL(),
        ...     critic=VectorField(v_dim=2), optimizer=Adam(lr=2e-4))
        >>> [(level.name, level.player, level.n_steps) for level in method.levels()]
        [('lower', 'phi', 5), ('upper', 'critic', 1)]
    """

    def __init__(
        self,
        *,
        energy: Energy,
        posterior: Posterior,
        divergence: Divergence,
        critic: nn.Module,
        optimizer: Optimizer,
        n_lower_steps: int = 5,
        n_particles: int = 1,
        residual: bool = False,
        seed: int = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(
            energy=energy, critic=critic, optimizer=optimizer, residual=residual, seed=seed, compile=compile
        )
        if n_particles < 1:
            raise ConfigError(f"The score's estimate needs n_particles (L) >= 1, not {n_particles}.")
        self.posterior, self.divergence, self.n_particles = posterior, divergence, n_particles
        self.particles, self.estimate = PosteriorParticles(), VaES()
        self.lower = PosteriorFit(
            energy=energy, posterior=posterior, divergence=divergence, n_steps=n_lower_steps, optimizer=optimizer
        )

    def players(self) -> dict[str, nn.Module]:
        """The model, which stays, the posterior and the critic."""
        return {**super().players(), "phi": self.posterior}

    def levels(self) -> Sequence[Level]:
        """K steps on phi, then one on the critic."""
        return [self.lower.level(), *super().levels()]

    def score_noise(self, v: Tensor, generator: torch.Generator) -> Tensor:
        """Noise of L latents for each v."""
        return self.particles.noise(self.energy, self.posterior, (self.n_particles,), v, generator)

    def model_score(self, params: dict[str, Params], v: Tensor, noise: Any) -> Tensor:
        """VaES at v, shape (B, *event)."""
        energy, posterior = bind(self.energy, params.get("theta", {})), bind(self.posterior, params.get("phi", {}))
        h = self.particles.draw(energy, posterior, v, noise)
        return self.estimate(energy, posterior, v, h)

    def model_field(self, params: dict[str, Params], v: Tensor) -> Tensor:
        """VaES at the mean of q, h held where it is; a derivative by v goes through that mean, too."""
        energy, posterior = bind(self.energy, params.get("theta", {})), bind(self.posterior, params.get("phi", {}))
        return self.estimate(energy, posterior, v, posterior.mean(v).unsqueeze(0))
