"""Score matching with the exact marginal score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from eblvm_lit.differentiation import grad_and_value
from eblvm_lit.energies.base import MarginalEnergy
from eblvm_lit.errors import ConfigError
from eblvm_lit.functional import Params, bind
from eblvm_lit.methods.base import Method
from eblvm_lit.methods.levels import Level, Situation
from eblvm_lit.objectives.base import Noise, Objective
from eblvm_lit.optimizers.base import Optimizer
from eblvm_lit.scores.exact import ExactScore

__all__ = ["ScoreMatching"]


class ScoreMatching(Method):
    r"""Any objective with the exact score :math:`-\nabla_v F(v)`: the baselines SM, SSM, DSM and MDSM.

    Args:
        energy: An energy with a tractable free energy.
        objective: Functional of the score.
        optimizer: Rule of the only level.
        seed: Seed of all noise.
        compile: Whether the iteration is compiled.

    Raises:
        ConfigError: For an energy whose marginal is not tractable.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.objectives.dsm import DSM
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> method = ScoreMatching(
        ...     energy=GRBM(v_dim=2, h_dim=3), objective=DSM(noise_std=0.1), optimizer=Adam(lr=1e-3))
        >>> [level.name for level in method.levels()]
        ['upper']
    """

    posterior = None
    divergence = None

    def __init__(
        self,
        *,
        energy: MarginalEnergy,
        objective: Objective,
        optimizer: Optimizer,
        seed: int = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(seed=seed, compile=compile)
        if not isinstance(energy, MarginalEnergy):
            raise ConfigError(
                f"{type(energy).__name__} has no tractable marginal, so exact score matching cannot train it: "
                "use a bi-level or variational method."
            )
        self.energy, self.objective, self.optimizer = energy, objective, optimizer

    def players(self) -> dict[str, torch.nn.Module]:
        """The model alone."""
        return {"theta": self.energy}

    def levels(self) -> Sequence[Level]:
        """One step on theta."""
        return [Level("upper", "theta", 1, self.optimizer, self._noise, self._gradient)]

    def _noise(self, v: Tensor, generator: torch.Generator) -> Noise:
        return self.objective.noise(v, (), generator)

    def loss(self, theta: Params, v: Tensor, noise: Noise) -> Tensor:
        """The objective per example, shape (B,)."""
        return self.objective.loss(ExactScore(bind(self.energy, theta)), self.objective.perturb(v, noise), noise)

    def _gradient(self, situation: Situation, v: Tensor, noise: Any, step: int) -> tuple[Tensor, Params]:  # noqa: ARG002
        grads, loss = grad_and_value(lambda theta: self.loss(theta, v, noise).mean())(situation.params["theta"])
        return loss, grads

    def validation_loss(self, v: Tensor, generator: torch.Generator) -> Tensor:
        """The training objective, per example, shape (B,)."""
        noise = self.objective.noise(v, (), generator)
        return self.objective.loss(ExactScore(self.energy), self.objective.perturb(v, noise), noise)
