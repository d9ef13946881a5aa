"""How a process computes, for as long as a run lasts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["tf32", "threads"]


@contextmanager
def threads(n: int | None) -> Iterator[None]:
    """So many CPU threads within, where a number is given; as before after it.

    Example:
        >>> before = torch.get_num_threads()
        >>> with threads(1):
        ...     torch.get_num_threads()
        1
        >>> torch.get_num_threads() == before
        True
    """
    before = torch.get_num_threads()
    torch.set_num_threads(n or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def tf32(allowed: bool | None) -> Iterator[None]:
    """Whether float32 products and convolutions on a GPU may be rounded to TF32 within; null: as before.

    Torch's own choice is that convolutions may and products may not. On a CPU nothing changes.

    Example:
        >>> with tf32(True):
        ...     torch.get_float32_matmul_precision()
        'high'
        >>> torch.get_float32_matmul_precision()
        'highest'
    """
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    if allowed is not None:
        torch.set_float32_matmul_precision("high" if allowed else "highest")
        torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
