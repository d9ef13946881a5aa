"""Sliced score matching."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from eblvm_lit.core.autograd import grad
from eblvm_lit.core.functional import sum_event
from eblvm_lit.errors import ConfigError
from eblvm_lit.objectives.base import Noise, Objective, ScoreFunction

__all__ = ["SSM"]


class SSM(Objective):
    r"""Sliced score matching with one random direction u per example, E[u u'] = I.

    .. math:: \tfrac12 \|s(v)\|^2 + u^\top (\nabla_v s(v))\, u

    Its mean over u is score matching. Reference: Song et al. 2019, Eq. 8 (the form with the exact norm).

    Args:
        projection: Law of u: ``rademacher`` (signs) or ``gaussian``.

    Raises:
        ConfigError: For an unknown law.

    Example:
        >>> SSM().loss(lambda v: -v, torch.ones(1, 2), {"u": torch.tensor([[1.0, -1.0]])}).tolist()
        [-1.0]
    """

    pointwise = False

    def __init__(self, *, projection: Literal["rademacher", "gaussian"] = "rademacher") -> None:
        if projection not in ("rademacher", "gaussian"):
            raise ConfigError(f"SSM projection is 'rademacher' or 'gaussian', not {projection!r}.")
        self.projection = projection

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
        return 0.5 * sum_event(s.square()) + sum_event(slope * u)
