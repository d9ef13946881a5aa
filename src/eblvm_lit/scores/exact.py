"""The exact marginal score."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from eblvm_lit.energies.base import Energy, MarginalEnergy
from eblvm_lit.errors import ConfigError
from eblvm_lit.scores.base import ScoreEstimator

__all__ = ["Exact", "ExactScore"]


class ExactScore:
    r"""The marginal score of an energy with a tractable free energy, as a score function.

    .. math:: s(v) = -\nabla_v F(v)

    Args:
        energy: Where the score comes from.

    Example:
        >>> import torch
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> ExactScore(GRBM(v_dim=2, h_dim=3))(torch.zeros(5, 2)).shape
        torch.Size([5, 2])
    """

    def __init__(self, energy: MarginalEnergy) -> None:
        self.energy = energy

    def __call__(self, v: Tensor) -> Tensor:
        """The score, shape (B, *event)."""
        return self.energy.score(v)

    def divergence(self, v: Tensor) -> Tensor:
        """Its divergence, shape (B,)."""
        return self.energy.score_divergence(v)


class Exact(ScoreEstimator):
    """The exact score, for models with a tractable marginal.

    Example:
        >>> import torch
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> v = torch.zeros(5, 2)
        >>> Exact().function(GRBM(v_dim=2, h_dim=3), None, v, None)(v).shape
        torch.Size([5, 2])
    """

    words = "exact score"
    has_smooth = True

    def check(self, energy: Energy) -> None:
        """Refuse an energy without a free energy."""
        if not isinstance(energy, MarginalEnergy):
            raise ConfigError(
                f"{type(energy).__name__} has no tractable marginal, so exact score matching cannot train it: "
                "use a bi-level or variational method."
            )

    def function(self, energy: MarginalEnergy, posterior: None, v: Tensor, noise: Any) -> ExactScore:
        """The exact score."""
        return ExactScore(energy)

    def smooth(self, energy: MarginalEnergy, posterior: None, v: Tensor) -> Tensor:
        """The exact score itself, shape (B, *event)."""
        return energy.score(v)
