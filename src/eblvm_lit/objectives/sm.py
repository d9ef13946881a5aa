"""Score matching with the exact trace."""

from __future__ import annotations

import torch
from torch import Tensor

from eblvm_lit.core.functional import divergence
from eblvm_lit.core.tensors import sum_event
from eblvm_lit.objectives.base import Noise, Objective, ScoreFunction

__all__ = ["SM"]


class SM(Objective):
    r"""Score matching.

    .. math:: \tfrac12 \|s(v)\|^2 + \mathrm{tr}\, \nabla_v s(v)

    Its mean is the Fisher divergence of model from data less a constant of the data. Reference: Hyvarinen 2005.
    A score function with a ``divergence`` method (a closed form) is asked for the trace, any other is differentiated
    once per dimension.

    Example:
        >>> SM().loss(lambda v: -v, torch.ones(1, 2), {}).tolist()  # the score of N(0, I)
        [-1.0]
    """

    words = "score matching"
    pointwise = False

    def noise(self, v: Tensor, shape: tuple[int, ...], generator: torch.Generator) -> Noise:
        """Nothing is random."""
        return {}

    def loss(self, score: ScoreFunction, v: Tensor, noise: Noise) -> Tensor:
        """Loss per example, shape (B,)."""
        exact = getattr(score, "divergence", None)
        trace = exact(v) if exact is not None else divergence(score, v)
        return 0.5 * sum_event(score(v).square()) + trace
