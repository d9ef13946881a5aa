"""The base class of score estimators, which are exact, importance-sampled or variational."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from eblvm_lit.energies.base import Energy
from eblvm_lit.objectives.base import ScoreFunction
from eblvm_lit.posteriors.base import Posterior

__all__ = ["ScoreEstimator"]


class ScoreEstimator(ABC):
    """An estimator of the marginal score grad_v log p(v) from an energy and, if necessary, a posterior.

    The theta-gradient of an objective is obtained by differentiating the objective's value at the estimated score.
    Only the variational estimator differs: it also estimates the theta-gradient of the score, see
    :class:`~eblvm_lit.scores.variational.VariationalFunction`.

    Attributes:
        words: The estimator's name in words, for the line that a run prints first.
        needs_posterior: Whether the estimate uses q(h|v).
    """

    words = "an estimated score"
    needs_posterior = False

    @abstractmethod
    def check(self, energy: Energy) -> None:
        """Raise a ConfigError if this estimator cannot estimate the score of this energy.

        Raises:
            ConfigError: If the estimator does not support the energy. The message names methods that support it.
        """

    def noise(self, energy: Energy, posterior: Posterior | None, v: Tensor, generator: torch.Generator) -> Any:
        """Draw the random numbers that one estimate of the score at v (B, *event) needs."""
        return None

    @abstractmethod
    def function(self, energy: Energy, posterior: Posterior | None, v: Tensor, noise: Any) -> ScoreFunction:
        """Return a function that estimates the score at points x (B, *event) from latents drawn given v (B, *event)."""

    def smooth(self, energy: Energy, posterior: Posterior | None, v: Tensor) -> Tensor:
        """Return a deterministic approximation of the score at v, shape (B, *event).

        A critic may add it to its network's output. Its accuracy determines only how much the network still has to
        learn; it does not change the quantity that the critic estimates.

        Raises:
            NotImplementedError: If the estimator is random.
        """
        raise NotImplementedError(f"{type(self).__name__} has no score without noise.")
