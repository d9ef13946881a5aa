"""Reconstructions of v by a method's encoder and generator."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from eblvm_lit.generation.eval_mode import eval_mode
from eblvm_lit.methods.base import MethodParts
from eblvm_lit.posteriors.base import Posterior

__all__ = ["decode", "reconstruct", "reconstructs"]

ROWS = 100


def reconstructs(parts: MethodParts) -> bool:
    """Whether a method has an encoder and a generator.

    Example:
        >>> reconstructs(MethodParts(generator=nn.Linear(3, 2)))
        False
    """
    return parts.posterior is not None and parts.generator is not None


@torch.no_grad()
def decode(generator: nn.Module, h: Tensor) -> Tensor:
    """G(h), shape (B, *event), of latents h (B, H), in evaluation mode.

    Example:
        >>> decode(nn.Linear(3, 2), torch.zeros(5, 3)).shape
        torch.Size([5, 2])
    """
    with eval_mode(generator):
        return torch.cat([generator(part) for part in h.split(ROWS)])


@torch.no_grad()
def reconstruct(parts: MethodParts, v: Tensor) -> Tensor:
    r""":math:`G(\mu(v))`, shape (B, *event), of v (B, *event), both networks in evaluation mode.

    Example:
        >>> from eblvm_lit.posteriors.gaussian import LinearGaussianPosterior
        >>> q = LinearGaussianPosterior(v_dim=2, h_dim=3)
        >>> reconstruct(MethodParts(posterior=q, generator=nn.Linear(3, 2)), torch.zeros(5, 2)).shape
        torch.Size([5, 2])
    """
    posterior, generator = cast(Posterior, parts.posterior), cast(nn.Module, parts.generator)
    with eval_mode(posterior):
        latents = [posterior.mean(part) for part in v.split(ROWS)]
    return decode(generator, torch.cat(latents))
