"""Score matching with a score that is computed from the model only, exactly or by importance sampling."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from eblvm_lit.core.functional import bind
from eblvm_lit.core.ranges import Seed
from eblvm_lit.energies.base import Energy
from eblvm_lit.methods.loss_method import LossMethod, score_of_model
from eblvm_lit.methods.parts import MethodParts
from eblvm_lit.methods.state import TrainState
from eblvm_lit.objectives.base import Objective
from eblvm_lit.optimizers.base import Optimizer
from eblvm_lit.scores.base import ScoreEstimator

__all__ = ["ScoreMatching"]


class ScoreMatching(LossMethod):
    r"""Score matching without a posterior: the baselines SM, SSM, DSM, MDSM, KSD, IS-KSD and IS-DSM.

    Any objective can be combined with any score that the model determines without a posterior.

    Args:
        energy: The model.
        objective: The objective, a functional of the score.
        optimizer: The optimizer of theta.
        score: The estimator of the score; the exact score if not given.
        seed: The seed of all random numbers.
        compile: Whether to compile the iteration; ``auto`` compiles it only in runs long enough to gain from it.

    Raises:
        ConfigError: If the estimator cannot compute the score of this energy.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.objectives.dsm import DSM
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> method = ScoreMatching(
        ...     energy=GRBM(v_dim=2, h_dim=3), objective=DSM(noise_std=0.1), optimizer=Adam(lr=1e-3))
        >>> method.validation_loss(torch.zeros(5, 2), torch.Generator()).shape
        torch.Size([5])
    """

    def __init__(
        self,
        *,
        energy: Energy,
        objective: Objective,
        optimizer: Optimizer,
        score: ScoreEstimator | None = None,
        seed: Seed = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(energy=energy, optimizer=optimizer, seed=seed, compile=compile)
        self.score = score_of_model(score, energy)
        self.objective = objective

    @property
    def title(self) -> str:
        """Return a readable name of the method, with its objective and its score estimator."""
        name = type(self.objective).__name__
        words = self.objective.words
        return f"{name}: {words}, {self.score.words}"

    @property
    def parts(self) -> MethodParts:
        """Return the energy and the objective."""
        return MethodParts(energy=self.objective.of_data(self.energy), objective=self.objective)

    def noise(self, v: Tensor, generator: torch.Generator) -> dict[str, Any]:
        """Draw the random numbers that the objective and the score estimator need."""
        data = self.objective.noise(v, (), generator)
        return {"data": data, "score": self.score.noise(self.energy, None, v, generator)}

    def loss(self, state: TrainState, v: Tensor, noise: Any) -> Tensor:
        """Compute the objective for each example, shape (B,)."""
        objective = self.objective.on_minibatch(state.minibatch)
        points = self.objective.perturb(v, noise["data"])
        score = self.score.function(bind(self.energy, state.theta), None, points, noise["score"])
        return objective.loss(score, points, noise["data"])
