"""What every estimator of the score offers that needs nothing but the model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from eblvm_lit.energies.base import Energy
from eblvm_lit.objectives.base import ScoreFunction

__all__ = ["ScoreEstimator"]


class ScoreEstimator(ABC):
    """How the marginal score is had from the energy; its theta-gradient is that of the estimate."""

    @abstractmethod
    def check(self, energy: Energy) -> None:
        """Refuse an energy whose score cannot be had this way.

        Raises:
            ConfigError: Saying what can.
        """

    def noise(self, energy: Energy, v: Tensor, generator: torch.Generator) -> Any:  # noqa: ARG002
        """The random numbers of one estimate at v, shape (B, *event)."""
        return None

    @abstractmethod
    def function(self, energy: Energy, noise: Any) -> ScoreFunction:
        """The estimate as a function of v, at fixed random numbers."""
