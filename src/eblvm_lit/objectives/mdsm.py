"""Multiscale denoising score matching, with several noise levels in a minibatch."""

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
    r"""The objective of multiscale denoising score matching.

    Example i of a minibatch is noised at the i-th of B noise levels, which form an ascending ladder.

    .. math:: \tfrac12 \| s(\tilde v_i) / \sigma_i + \epsilon_i / \sigma_0^2 \|^2, \quad
        \tilde v_i = v_i + \sigma_i \epsilon_i

    Reference: Li et al. 2019; Bao et al. 2020, Eq. 5, with the weight 1/(2 sigma_i^2) of the code of both BiSM and
    VaGES. Without this weight the examples with large noise dominate the loss. The lower-level loss of example i is
    divided by sigma_i. A minibatch of one example would always have the smallest level; therefore its level is drawn
    at random, from a uniform distribution of the position on the ladder.

    Args:
        sigma_min: The smallest noise level, a standard deviation in the units of v.
        sigma_max: The largest noise level.
        sigma0: The standard deviation of the reference noise.
        ladder: The spacing of the levels, ``linear`` or ``geometric``.
        lower_weighting: Whether the lower-level loss of example i is divided by sigma_i.

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
        """Return the noise level of each example of a minibatch v, shape (B,)."""
        if self.ladder == "linear":
            return torch.linspace(self.sigma_min, self.sigma_max, len(v), dtype=v.dtype, device=v.device)
        ends = math.log10(self.sigma_min), math.log10(self.sigma_max)
        return torch.logspace(*ends, len(v), dtype=v.dtype, device=v.device)

    def noise(self, v: Tensor, shape: tuple[int, ...], generator: torch.Generator) -> Noise:
        """Draw standard normal ``eps`` (*shape, B, *event) and return it with the levels ``sigma`` (*shape, B)."""
        eps = torch.randn((*shape, *v.shape), generator=generator, dtype=v.dtype, device=v.device)
        if len(v) > 1:
            return {"eps": eps, "sigma": self.levels(v).expand(*shape, -1)}
        place = torch.rand((*shape, 1), generator=generator, dtype=v.dtype, device=v.device)
        return {"eps": eps, "sigma": self._level(place)}

    def _level(self, place: Tensor) -> Tensor:
        """Compute the noise level at a position on the ladder between 0 (sigma_min) and 1 (sigma_max)."""
        if self.ladder == "linear":
            return self.sigma_min + (self.sigma_max - self.sigma_min) * place
        return self.sigma_min * (self.sigma_max / self.sigma_min) ** place

    @staticmethod
    def _sigma(noise: Noise) -> Tensor:
        """Return the noise levels, reshaped so that they broadcast against v."""
        return noise["sigma"].view(-1, *(1,) * (noise["eps"].dim() - 1))

    def perturb(self, v: Tensor, noise: Noise) -> Tensor:
        """Return the noised data v_i + sigma_i eps_i, shape (B, *event)."""
        return v + self._sigma(noise) * noise["eps"]

    def cotangent(self, s: Tensor, v: Tensor, noise: Noise) -> Tensor:
        """Return the gradient of the summed loss with respect to the scores s, shape (B, *event)."""
        return self._residual(s, noise) / self._sigma(noise)

    def _residual(self, s: Tensor, noise: Noise) -> Tensor:
        return s / self._sigma(noise) + noise["eps"] / self.sigma0**2

    def loss(self, score: ScoreFunction, v: Tensor, noise: Noise) -> Tensor:
        """Compute the loss of each example, shape (B,)."""
        return 0.5 * sum_event(self._residual(score(v), noise).square())

    def lower_weight(self, noise: Noise) -> Tensor | float:
        """Return the weights of the lower-level loss: 1 / sigma_i, shape (B,), or 1 without ``lower_weighting``."""
        return 1 / noise["sigma"] if self.lower_weighting else 1.0
