"""Reconstructions of v by what a method encodes and decodes with."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from eblvm_lit.core.eval_mode import eval_mode
from eblvm_lit.methods.parts import MethodParts

__all__ = ["decode", "encode", "reconstruct", "reconstructs"]

ROWS = 100


def reconstructs(parts: MethodParts) -> bool:
    """Whether a method has a posterior or an encoder, and a generator.

    Example:
        >>> reconstructs(MethodParts(generator=nn.Linear(3, 2)))
        False
    """
    return parts.encoding is not None and parts.decoding is not None


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
def encode(parts: MethodParts, v: Tensor) -> Tensor:
    r"""h of v, shape (B, H): the posterior's mean :math:`\mu(v)`, or what the encoder gives; in evaluation mode.

    Args:
        parts: Of a method with a posterior or an encoder.
        v: Shape (B, *event), floats on any device.

    Example:
        >>> from eblvm_lit.posteriors.gaussian import LinearGaussianPosterior
        >>> encode(MethodParts(posterior=LinearGaussianPosterior(v_dim=2, h_dim=3)), torch.zeros(5, 2)).shape
        torch.Size([5, 3])
    """
    encoding = parts.encoding
    with eval_mode(encoding):
        own = next(encoding.parameters())
        return torch.cat([encoding(part.to(own)) for part in v.split(ROWS)])


@torch.no_grad()
def reconstruct(parts: MethodParts, v: Tensor) -> Tensor:
    r""":math:`G(\mu(v))`, shape (B, *event), of v (B, *event), both networks in evaluation mode; see :func:`encode`.

    Example:
        >>> from eblvm_lit.posteriors.gaussian import LinearGaussianPosterior
        >>> q = LinearGaussianPosterior(v_dim=2, h_dim=3)
        >>> reconstruct(MethodParts(posterior=q, generator=nn.Linear(3, 2)), torch.zeros(5, 2)).shape
        torch.Size([5, 2])
    """
    return decode(cast(nn.Module, parts.decoding), encode(parts, v))
