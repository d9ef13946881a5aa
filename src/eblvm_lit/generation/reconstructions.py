"""What is left of v after its latents."""

from __future__ import annotations

import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn

from eblvm_lit.generation.eval_mode import frozen
from eblvm_lit.posteriors.base import Posterior

__all__ = ["decode", "reconstruct", "reconstructs"]

ROWS = 100


def reconstructs(method: LightningModule) -> bool:
    """Whether a method has an encoder and a generator.

    Example:
        >>> reconstructs(LightningModule())
        False
    """
    encoder, generator = getattr(method, "posterior", None), getattr(method, "generator", None)
    return isinstance(encoder, Posterior) and isinstance(generator, nn.Module)


@torch.no_grad()
def decode(method: LightningModule, h: Tensor) -> Tensor:
    """G(h), shape (B, *event), of latents h (B, H), in evaluation mode.

    Example:
        >>> method = LightningModule()
        >>> method.generator = nn.Linear(3, 2)
        >>> decode(method, torch.zeros(5, 3)).shape
        torch.Size([5, 2])
    """
    with frozen(method.generator):
        return torch.cat([method.generator(part) for part in h.split(ROWS)])


@torch.no_grad()
def reconstruct(method: LightningModule, v: Tensor) -> Tensor:
    r""":math:`G(\mu(v))`, shape (B, *event), of v (B, *event), both networks in evaluation mode.

    Example:
        >>> from eblvm_lit.posteriors.gaussian import LinearGaussianPosterior
        >>> method = LightningModule()
        >>> method.posterior, method.generator = LinearGaussianPosterior(v_dim=2, h_dim=3), nn.Linear(3, 2)
        >>> reconstruct(method, torch.zeros(5, 2)).shape
        torch.Size([5, 2])
    """
    with frozen(method.posterior):
        latents = [method.posterior.mean(part) for part in v.split(ROWS)]
    return decode(method, torch.cat(latents))
