"""Sliced score matching, with random projections of the score."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from eblvm_lit.core.functional import grad
from eblvm_lit.core.tensors import sum_event
from eblvm_lit.objectives.base import Noise, Objective, ScoreFunction

__all__ = ["SSM"]


class SSM(Objective):
    r"""The objective of sliced score matching, with one random direction u per example and E[u u'] = I.

    .. math:: \tfrac12 \|s(v)\|^2 + u^\top (\nabla_v s(v))\, u

    This form, the default, is sliced score matching with variance reduction. The plain form has the squared projection
    of the score in place of its squared norm, which is the mean of the squared projection over u:

    .. math:: \tfrac12 (u^\top s(v))^2 + u^\top (\nabla_v s(v))\, u

    The mean of either form over u is the score matching loss.
    Reference: Song et al. 2019, Eq. 8 (``norm=exact``) and Eq. 7 (``norm=projected``).

    Args:
        projection: The distribution of u: ``rademacher`` (random signs) or ``gaussian``.
        norm: ``exact``, the variance-reduced form, which the code of BiSM and of VaGES uses, or ``projected``, the
            plain form.

    Example:
        >>> SSM().loss(lambda v: -v, torch.ones(1, 2), {"u": torch.tensor([[1.0, -1.0]])}).tolist()
        [-1.0]
    """

    words = "sliced score matching"
    pointwise = False

    def __init__(
        self,
        *,
        projection: Literal["rademacher", "gaussian"] = "rademacher",
        norm: Literal["exact", "projected"] = "exact",
    ) -> None:
        self.projection = projection
        self.norm = norm

    def noise(self, v: Tensor, shape: tuple[int, ...], generator: torch.Generator) -> Noise:
        """Draw the random projection directions ``u``, shape (*shape, B, *event)."""
        u = torch.randn((*shape, *v.shape), generator=generator, dtype=v.dtype, device=v.device)
        # torch.where is used instead of torch.sign, because sign(0) = 0 would drop a component. The probability of an
        # exact zero is about 2^-24.
        return {"u": u if self.projection == "gaussian" else torch.where(u >= 0, 1.0, -1.0).to(v.dtype)}

    def loss(self, score: ScoreFunction, v: Tensor, noise: Noise) -> Tensor:
        """Compute the loss of each example, shape (B,)."""
        u = noise["u"]

        def slice_of_score(x: Tensor) -> tuple[Tensor, Tensor]:
            s = score(x)
            return (s * u).sum(), s

        slope, s = grad(slice_of_score, has_aux=True)(v)
        square = sum_event(s.square()) if self.norm == "exact" else sum_event(s * u).square()
        return 0.5 * square + sum_event(slope * u)
