"""Denoising score matching at one noise level."""

from __future__ import annotations

import torch
from pydantic import PositiveFloat
from torch import Tensor

from eblvm_lit.core.tensors import sum_event
from eblvm_lit.objectives.base import Noise, Objective, ScoreFunction

__all__ = ["DSM"]


class DSM(Objective):
    r"""The objective of denoising score matching at one noise level.

    .. math:: \tfrac12 \| s(\tilde v) + \epsilon / \sigma \|^2, \quad \tilde v = v + \sigma \epsilon, \;
        \epsilon \sim N(0, I)

    Reference: Vincent 2011; Bao et al. 2020, Eq. 4, with the factor 1/2 of their code.

    Args:
        noise_std: The standard deviation sigma of the noise, in the units of v.

    Example:
        >>> objective, eps = DSM(noise_std=0.5), {"eps": torch.ones(1, 2)}
        >>> objective.loss(lambda v: -v, objective.perturb(torch.zeros(1, 2), eps), eps).tolist()  # (1/2) 2 (2 - 0.5)^2
        [2.25]
    """

    words = "denoising score matching"
    pointwise = True
    perturbs = True

    def __init__(self, *, noise_std: PositiveFloat) -> None:
        self.noise_std = noise_std

    def noise(self, v: Tensor, shape: tuple[int, ...], generator: torch.Generator) -> Noise:
        """Draw standard normal noise ``eps``, shape (*shape, B, *event)."""
        return {"eps": torch.randn((*shape, *v.shape), generator=generator, dtype=v.dtype, device=v.device)}

    def perturb(self, v: Tensor, noise: Noise) -> Tensor:
        """Return the noised data v + sigma eps, shape (B, *event)."""
        return v + self.noise_std * noise["eps"]

    def cotangent(self, s: Tensor, v: Tensor, noise: Noise) -> Tensor:
        """Return the gradient of the summed loss with respect to the scores s, shape (B, *event)."""
        return s + noise["eps"] / self.noise_std

    def loss(self, score: ScoreFunction, v: Tensor, noise: Noise) -> Tensor:
        """Compute the loss of each example, shape (B,)."""
        return 0.5 * sum_event((score(v) + noise["eps"] / self.noise_std).square())
