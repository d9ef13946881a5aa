"""Score matching with the exact trace of the score's Jacobian."""

from __future__ import annotations

import torch
from torch import Tensor

from eblvm_lit.core.functional import divergence
from eblvm_lit.core.tensors import sum_event
from eblvm_lit.objectives.base import Noise, Objective, ScoreFunction

__all__ = ["SM"]


class SM(Objective):
    r"""The objective of score matching, with the exact trace of the score's Jacobian.

    .. math:: \tfrac12 \|s(v)\|^2 + \mathrm{tr}\, \nabla_v s(v)

    Its mean over the data is the Fisher divergence of the model from the data minus a constant that depends only on
    the data. Reference: Hyvarinen 2005. If the score function has a ``divergence`` method, this closed form gives the
    trace. Any other score function is differentiated once for each dimension of v.

    Example:
        >>> SM().loss(lambda v: -v, torch.ones(1, 2), {}).tolist()  # the score of N(0, I)
        [-1.0]
    """

    words = "score matching"
    pointwise = False

    def noise(self, v: Tensor, shape: tuple[int, ...], generator: torch.Generator) -> Noise:
        """Return no noise, because the loss is deterministic."""
        return {}

    def loss(self, score: ScoreFunction, v: Tensor, noise: Noise) -> Tensor:
        """Compute the loss of each example, shape (B,)."""
        exact = getattr(score, "divergence", None)
        trace = exact(v) if exact is not None else divergence(score, v)
        return 0.5 * sum_event(score(v).square()) + trace
