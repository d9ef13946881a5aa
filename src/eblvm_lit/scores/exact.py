"""The exact marginal score."""

from __future__ import annotations

from torch import Tensor

from eblvm_lit.energies.base import MarginalEnergy

__all__ = ["ExactScore"]


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
