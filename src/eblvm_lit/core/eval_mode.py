"""Evaluation mode for a block of code: parameters get no gradients, and batch normalisation uses running statistics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

__all__ = ["eval_mode"]


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Put a module in evaluation mode with frozen parameters inside this context, and restore its state on exit.

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
