"""Sliced score matching."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from eblvm_lit.core.functional import grad
from eblvm_lit.core.tensors import sum_event
from eblvm_lit.objectives.base import Noise, Objective, ScoreFunction

__all__ = ["SSM"]


class SSM(Objective):
    r"""Sliced score matching with one random direction u per example, E[u u'] = I.

    .. math:: \tfrac12 \|s(v)\|^2 + u^\top (\nabla_v s(v))\, u

    The mean of either form over u is score matching. This one, the default, is sliced score matching with variance
    reduction: the squared norm replaces the squared projection of the plain form, whose mean over u it is.

    .. math:: \tfrac12 (u^\top s(v))^2 + u^\top (\nabla_v s(v))\, u

    Reference: Song et al. 2019, Eq. 8 (``norm=exact``) and Eq. 7 (``norm=projected``).

    Args:
        projection: Distribution of u: ``rademacher`` (signs) or ``gaussian``.
        norm: ``exact``, the variance-reduced form of both released codes, or ``projected``, the plain form.

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
        """Directions ``u``, shape (*shape, B, *event)."""
        u = torch.randn((*shape, *v.shape), generator=generator, dtype=v.dtype, device=v.device)
        # u = 0 has probability 2^-24 or so, and sign(0) = 0 would drop a direction
        return {"u": u if self.projection == "gaussian" else torch.where(u >= 0, 1.0, -1.0).to(v.dtype)}

    def loss(self, score: ScoreFunction, v: Tensor, noise: Noise) -> Tensor:
        """Loss per example, shape (B,)."""
        u = noise["u"]

        def slice_of_score(x: Tensor) -> tuple[Tensor, Tensor]:
            s = score(x)
            return (s * u).sum(), s

        slope, s = grad(slice_of_score, has_aux=True)(v)
        square = sum_event(s.square()) if self.norm == "exact" else sum_event(s * u).square()
        return 0.5 * square + sum_event(slope * u)
