"""The contract of score estimators: exact, bi-level, variational and by importance sampling."""

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
    """An estimator of the marginal score from an energy, and from a posterior where it needs one.

    The theta-gradient of an objective is that of the objective of the estimate, taken by differentiation. The
    variational estimator alone adds a step: its theta-gradient is an estimate too, see
    :class:`~eblvm_lit.scores.variational.VariationalFunction`.

    Attributes:
        words: Its name in words, for the first line of a run.
        needs_posterior: Whether the estimate uses q(h|v).
        has_smooth: Whether there is :meth:`smooth`.
    """

    words = "an estimated score"
    needs_posterior = False
    has_smooth = False

    @abstractmethod
    def check(self, energy: Energy) -> None:
        """Refuse an energy whose score cannot be estimated so.

        Raises:
            ConfigError: Saying what can.
        """

    def noise(self, energy: Energy, posterior: Posterior | None, v: Tensor, generator: torch.Generator) -> Any:
        """The random numbers of one estimate at v, shape (B, *event)."""
        return None

    @abstractmethod
    def function(self, energy: Energy, posterior: Posterior | None, v: Tensor, noise: Any) -> ScoreFunction:
        """The estimate as a function of points (B, *event), with latents drawn at v (B, *event)."""

    def smooth(self, energy: Energy, posterior: Posterior | None, v: Tensor) -> Tensor:
        """A function of v near the score, shape (B, *event), without any noise.

        It may be a part of any critic: how near it is decides what the critic's network has to learn, and not what is
        estimated.

        Raises:
            NotImplementedError: Where :attr:`has_smooth` is false.
        """
        raise NotImplementedError(f"{type(self).__name__} has no score without noise.")
