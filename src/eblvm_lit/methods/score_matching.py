"""Score matching with a score that the model alone gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from eblvm_lit.core.autograd import grad_and_value
from eblvm_lit.core.functional import Params, bind
from eblvm_lit.energies.base import Energy
from eblvm_lit.methods.base import Method
from eblvm_lit.methods.levels import Gradient, Level, TrainState
from eblvm_lit.objectives.base import Objective
from eblvm_lit.optimizers.base import Optimizer
from eblvm_lit.scores.base import ScoreEstimator
from eblvm_lit.scores.exact import Exact

__all__ = ["ScoreMatching"]


class ScoreMatching(Method):
    r"""Any objective with a score that the model alone gives: the baselines SM, SSM, DSM, MDSM, KSD, IS-KSD and IS-DSM.

    Args:
        energy: The model.
        objective: Functional of the score.
        optimizer: Rule of the only level.
        score: How the score is had; exactly if not given.
        seed: Seed of all noise.
        compile: Whether the iteration is compiled.

    Raises:
        ConfigError: For an energy whose score cannot be had that way.

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
        energy: Energy,
        objective: Objective,
        optimizer: Optimizer,
        score: ScoreEstimator | None = None,
        seed: int = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(seed=seed, compile=compile)
        self.score = score or Exact()
        self.score.check(energy)
        self.energy, self.objective, self.optimizer = energy, objective, optimizer

    def players(self) -> dict[str, torch.nn.Module]:
        """The model alone."""
        return {"theta": self.energy}

    def levels(self) -> Sequence[Level]:
        """One step on theta."""
        return [Level("upper", "theta", 1, self.optimizer, self.noise, self._gradient)]

    def check_batch_size(self, n: int) -> None:
        """Refuse what the objective refuses."""
        self.objective.check_batch_size(n)

    def noise(self, v: Tensor, generator: torch.Generator) -> dict[str, Any]:
        """The random numbers of one evaluation of the loss."""
        return {"data": self.objective.noise(v, (), generator), "score": self.score.noise(self.energy, v, generator)}

    def loss(self, theta: Params, v: Tensor, noise: Any) -> Tensor:
        """The objective per example, shape (B,)."""
        return self._loss(bind(self.energy, theta), v, noise)

    def _loss(self, energy: Energy, v: Tensor, noise: Any) -> Tensor:
        points = self.objective.perturb(v, noise["data"])
        return self.objective.loss(self.score.function(energy, noise["score"]), points, noise["data"])

    def _gradient(self, situation: TrainState, v: Tensor, noise: Any, step: int) -> Gradient:  # noqa: ARG002
        grads, loss = grad_and_value(lambda theta: self.loss(theta, v, noise).mean())(situation.params["theta"])
        return Gradient(loss, grads)

    def validation_loss(self, v: Tensor, generator: torch.Generator) -> Tensor:
        """The training objective, per example, shape (B,)."""
        return self._loss(self.energy, v, self.noise(v, generator))
