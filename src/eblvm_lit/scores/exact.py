"""The exact marginal score of a model with a tractable free energy."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from eblvm_lit.energies.base import Energy, MarginalEnergy
from eblvm_lit.errors import ConfigError
from eblvm_lit.scores.base import ScoreEstimator

__all__ = ["Exact", "ExactScore"]


class ExactScore:
    r"""The exact marginal score of an energy with a tractable free energy.

    .. math:: s(v) = -\nabla_v F(v)

    Args:
        energy: The energy whose score is computed.

    Example:
        >>> import torch
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> ExactScore(GRBM(v_dim=2, h_dim=3))(torch.zeros(5, 2)).shape
        torch.Size([5, 2])
    """

    def __init__(self, energy: MarginalEnergy) -> None:
        self.energy = energy

    def __call__(self, v: Tensor) -> Tensor:
        """Compute the score at v, shape (B, *event)."""
        return self.energy.score(v)

    def divergence(self, v: Tensor) -> Tensor:
        """Compute the divergence of the score (the trace of its Jacobian), shape (B,)."""
        return self.energy.score_divergence(v)


class Exact(ScoreEstimator):
    """The estimator that returns the exact score, for models with a tractable free energy.

    Example:
        >>> import torch
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> v = torch.zeros(5, 2)
        >>> Exact().function(GRBM(v_dim=2, h_dim=3), None, v, None)(v).shape
        torch.Size([5, 2])
    """

    words = "exact score"

    def check(self, energy: Energy) -> None:
        """Raise a ConfigError if the free energy is not tractable."""
        if not isinstance(energy, MarginalEnergy):
            raise ConfigError(
                f"{type(energy).__name__} has no tractable marginal, so exact score matching cannot train it: "
                "use a bi-level or variational method."
            )

    def function(self, energy: MarginalEnergy, posterior: None, v: Tensor, noise: Any) -> ExactScore:
        """Return the exact score as a function of v."""
        return ExactScore(energy)

    def smooth(self, energy: MarginalEnergy, posterior: None, v: Tensor) -> Tensor:
        """Return the exact score at v, shape (B, *event), which is deterministic."""
        return energy.score(v)
