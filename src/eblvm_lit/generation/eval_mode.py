"""Models that are only looked at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from eblvm_lit.posteriors.base import Posterior

__all__ = ["frozen", "posterior_mean"]


@contextmanager
def frozen(*modules: nn.Module) -> Iterator[None]:
    """Within, modules are in evaluation mode and their parameters need no gradient; after it all is as before.

    Args:
        modules: Any number of them.

    Example:
        >>> layer = nn.Linear(2, 3)
        >>> with frozen(layer):
        ...     layer.training, layer.weight.requires_grad
        (False, False)
        >>> layer.training, layer.weight.requires_grad
        (True, True)
    """
    modes = [(part, part.training) for module in modules for part in module.modules()]
    flags = [(p, p.requires_grad) for module in modules for p in module.parameters()]
    try:
        for part, _ in modes:
            part.training = False
        for p, _ in flags:
            p.requires_grad_(False)
        yield
    finally:
        for part, mode in modes:
            part.training = mode
        for p, flag in flags:
            p.requires_grad_(flag)


def posterior_mean(posterior: Posterior, v: Tensor) -> Tensor:
    """E_q[h|v], shape (B, H), of a posterior that is in evaluation mode for as long as that takes.

    Args:
        posterior: q.
        v: Shape (B, *event), floats on any device.

    Example:
        >>> from eblvm_lit.posteriors.gaussian import LinearGaussianPosterior
        >>> posterior_mean(LinearGaussianPosterior(v_dim=2, h_dim=3), torch.zeros(5, 2)).requires_grad
        False
    """
    with frozen(posterior), torch.no_grad():
        return posterior.mean(v.to(next(posterior.parameters())))
