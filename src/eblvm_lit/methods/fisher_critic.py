"""The Fisher divergence of data from a model, estimated by training a critic."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from eblvm_lit.core.functional import Params, bind
from eblvm_lit.energies.base import Energy
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.critic import Critic
from eblvm_lit.optimizers.base import Optimizer
from eblvm_lit.scores.base import ScoreEstimator
from eblvm_lit.scores.exact import Exact

__all__ = ["FisherCritic"]


class FisherCritic(Critic):
    r"""The Fisher divergence of the data from a model, as the best a critic f can do.

    .. math:: D_F(p_D \| p_\theta) = \tfrac12 E_{p_D} \|s_\theta(v) - \nabla_v \log p_D(v)\|^2
        = \max_f E_{p_D} [s_\theta(v)^\top f(v) + u^\top (\nabla_v f(v))\, u - \tfrac12 \|f(v)\|^2]

    u are random signs; the maximum is at :math:`f = s_\theta - \nabla_v \log p_D`. Reference: Bao et al. 2021,
    section 4.3 and appendix F.3.

    Args:
        energy: The model; no level moves it.
        critic: A network that maps v (B, *event) to (B, *event).
        optimizer: Rule of the critic.
        score: How the model's score is had; exactly if not given.
        residual: Whether f is the network added to the model's score; else it is the network alone, as published.
        seed: Seed of all noise.
        compile: Whether the iteration is compiled.

    Raises:
        ConfigError: For an energy whose score cannot be had that way, or a residual critic of a noisy score.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.networks.vector_field import VectorField
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> method = FisherCritic(
        ...     energy=GRBM(v_dim=2, h_dim=3), critic=VectorField(v_dim=2), optimizer=Adam(lr=2e-4))
        >>> [(level.name, level.player) for level in method.levels()]
        [('upper', 'critic')]
    """

    def __init__(
        self,
        *,
        energy: Energy,
        critic: nn.Module,
        optimizer: Optimizer,
        score: ScoreEstimator | None = None,
        residual: bool = False,
        seed: int = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(
            energy=energy, critic=critic, optimizer=optimizer, residual=residual, seed=seed, compile=compile
        )
        self.score = score or Exact()
        self.score.check(energy)
        if residual and not isinstance(self.score, Exact):
            raise ConfigError(
                f"A residual critic is added to a score without noise, and that of {type(self.score).__name__} has "
                "some: use score=exact, method=vages_fisher, or residual=false."
            )

    def score_noise(self, v: Tensor, generator: torch.Generator) -> Any:
        """What the score estimator needs; nothing, if it is exact."""
        return self.score.noise(self.energy, v, generator)

    def model_score(self, params: dict[str, Params], v: Tensor, noise: Any) -> Tensor:
        """The score that the model alone gives at v, shape (B, *event)."""
        return self.score.function(bind(self.energy, params.get("theta", {})), noise)(v)

    def model_field(self, params: dict[str, Params], v: Tensor) -> Tensor:
        """The exact score."""
        return self.model_score(params, v, None)
