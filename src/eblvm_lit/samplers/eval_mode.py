"""Evaluation mode for a block of code: no gradients of parameters, no statistics of the batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from eblvm_lit.posteriors.base import Posterior

__all__ = ["eval_mode", "posterior_mean"]


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Set a module to evaluation mode and its parameters to need no gradient, and restore both afterwards.

    Example:
        >>> layer = nn.Linear(2, 3)
        >>> with eval_mode(layer):
        ...     layer.training, layer.weight.requires_grad
        (False, False)
        >>> layer.training, layer.weight.requires_grad
        (True, True)
    """
    modes = [(part, part.training) for part in module.modules()]
    flags = [(p, p.requires_grad) for p in module.parameters()]
    try:
        module.eval().requires_grad_(False)
        yield
    finally:
        for part, mode in modes:
            part.training = mode
        for p, flag in flags:
            p.requires_grad_(flag)


def posterior_mean(posterior: Posterior, v: Tensor) -> Tensor:
    """E_q[h|v], shape (B, H), with the posterior in evaluation mode.

    Args:
        posterior: q.
        v: Shape (B, *event), floats on any device.

    Example:
        >>> from eblvm_lit.posteriors.gaussian import LinearGaussianPosterior
        >>> posterior_mean(LinearGaussianPosterior(v_dim=2, h_dim=3), torch.zeros(5, 2)).requires_grad
        False
    """
    with eval_mode(posterior), torch.no_grad():
        return posterior.mean(v.to(next(posterior.parameters())))
