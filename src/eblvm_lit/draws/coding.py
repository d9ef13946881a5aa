"""Reconstructions of v, computed by a method's encoder (or posterior) and its generator."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from eblvm_lit.core.eval_mode import eval_mode
from eblvm_lit.methods.parts import MethodParts

__all__ = ["decode", "encode", "reconstruct", "reconstructs"]

ROWS = 100


def reconstructs(parts: MethodParts) -> bool:
    """Return whether a method can reconstruct data, because it has a generator, and a posterior or an encoder.

    Example:
        >>> reconstructs(MethodParts(generator=nn.Linear(3, 2)))
        False
    """
    return parts.encoding is not None and parts.decoding is not None


@torch.no_grad()
def decode(generator: nn.Module, h: Tensor) -> Tensor:
    """Compute the output G(h), shape (B, *event), of a generator G in evaluation mode for latents h (B, H).

    Example:
        >>> decode(nn.Linear(3, 2), torch.zeros(5, 3)).shape
        torch.Size([5, 2])
    """
    with eval_mode(generator):
        return torch.cat([generator(part) for part in h.split(ROWS)])


@torch.no_grad()
def encode(parts: MethodParts, v: Tensor) -> Tensor:
    r"""Compute the latents of examples v, shape (B, H): the posterior mean :math:`\mu(v)`, or the encoder's output.

    The network is in evaluation mode.

    Args:
        parts: The parts of a method, which include a posterior or an encoder.
        v: Examples, shape (B, *event), floats on any device.

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
    r"""Compute the reconstructions :math:`G(\mu(v))`, shape (B, *event), of examples v (B, *event).

    Both networks are in evaluation mode; see :func:`encode`.

    Example:
        >>> from eblvm_lit.posteriors.gaussian import LinearGaussianPosterior
        >>> q = LinearGaussianPosterior(v_dim=2, h_dim=3)
        >>> reconstruct(MethodParts(posterior=q, generator=nn.Linear(3, 2)), torch.zeros(5, 2)).shape
        torch.Size([5, 2])
    """
    return decode(cast(nn.Module, parts.decoding), encode(parts, v))
