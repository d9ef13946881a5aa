"""Multiscale denoising score matching."""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor

from eblvm_lit.core.tensors import sum_event
from eblvm_lit.objectives.base import Noise, Objective, ScoreFunction

__all__ = ["MDSM"]


class MDSM(Objective):
    r"""Multiscale denoising score matching: example i of a batch has the i-th level of a ladder of B levels.

    .. math:: \tfrac12 \| s(\tilde v_i) / \sigma_i + \epsilon_i / \sigma_0^2 \|^2, \quad
        \tilde v_i = v_i + \sigma_i \epsilon_i

    Reference: Li et al. 2019; Bao et al. 2020, Eq. 5, with the weight 1/(2 sigma_i^2) of both released codes, without
    which the large levels drown the small. The lower-level loss of example i is divided by sigma_i. A batch of one
    example would always have the smallest level: its level is drawn, uniform in the place on the ladder.

    Args:
        sigma_min: Smallest level.
        sigma_max: Largest level.
        sigma0: Standard deviation of the reference noise.
        ladder: ``linear`` or ``geometric`` spacing.
        lower_weighting: Whether the lower-level loss is divided by sigma_i.

    Example:
        >>> MDSM(sigma_min=0.1, sigma_max=1.0, sigma0=0.1, ladder="geometric").levels(torch.zeros(3, 2))
        tensor([0.1000, 0.3162, 1.0000])
    """

    words = "multiscale denoising score matching"
    pointwise = True
    perturbs = True

    def __init__(
        self,
        *,
        sigma_min: PositiveFloat,
        sigma_max: PositiveFloat,
        sigma0: PositiveFloat,
        ladder: Literal["linear", "geometric"] = "linear",
        lower_weighting: bool = True,
    ) -> None:
        self.sigma_min = sigma_min
        self.sigma_max = sigma_max
        self.sigma0 = sigma0
        self.ladder = ladder
        self.lower_weighting = lower_weighting

    def levels(self, v: Tensor) -> Tensor:
        """The ladder of a batch, shape (B,)."""
        if self.ladder == "linear":
            return torch.linspace(self.sigma_min, self.sigma_max, len(v), dtype=v.dtype, device=v.device)
        ends = math.log10(self.sigma_min), math.log10(self.sigma_max)
        return torch.logspace(*ends, len(v), dtype=v.dtype, device=v.device)

    def noise(self, v: Tensor, shape: tuple[int, ...], generator: torch.Generator) -> Noise:
        """Standard normal ``eps`` (*shape, B, *event) and the levels ``sigma`` (*shape, B)."""
        eps = torch.randn((*shape, *v.shape), generator=generator, dtype=v.dtype, device=v.device)
        if len(v) > 1:
            return {"eps": eps, "sigma": self.levels(v).expand(*shape, -1)}
        place = torch.rand((*shape, 1), generator=generator, dtype=v.dtype, device=v.device)
        return {"eps": eps, "sigma": self._level(place)}

    def _level(self, place: Tensor) -> Tensor:
        """The level at a place between 0 and 1 on the ladder."""
        if self.ladder == "linear":
            return self.sigma_min + (self.sigma_max - self.sigma_min) * place
        return self.sigma_min * (self.sigma_max / self.sigma_min) ** place

    @staticmethod
    def _sigma(noise: Noise) -> Tensor:
        """The ladder, shaped to multiply v."""
        return noise["sigma"].view(-1, *(1,) * (noise["eps"].dim() - 1))

    def perturb(self, v: Tensor, noise: Noise) -> Tensor:
        """v_i + sigma_i eps_i."""
        return v + self._sigma(noise) * noise["eps"]

    def cotangent(self, s: Tensor, v: Tensor, noise: Noise) -> Tensor:
        """d loss / d s at the score's value s, shape (B, *event)."""
        return self._residual(s, noise) / self._sigma(noise)

    def _residual(self, s: Tensor, noise: Noise) -> Tensor:
        return s / self._sigma(noise) + noise["eps"] / self.sigma0**2

    def loss(self, score: ScoreFunction, v: Tensor, noise: Noise) -> Tensor:
        """Loss per example, shape (B,)."""
        return 0.5 * sum_event(self._residual(score(v), noise).square())

    def lower_weight(self, noise: Noise) -> Tensor | float:
        """1 / sigma_i, shape (B,), or 1."""
        return 1 / noise["sigma"] if self.lower_weighting else 1.0
