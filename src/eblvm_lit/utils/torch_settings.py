"""Torch's global settings: CPU threads, subnormal numbers and TF32 as context managers; devices by their names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from eblvm_lit.errors import ConfigError

__all__ = ["device_named", "flush_subnormals", "tf32", "threads"]


def device_named(name: str | int | torch.device) -> torch.device:
    """A device that torch has: ``auto`` is a GPU where there is one, ``gpu`` is ``cuda``.

    Raises:
        ConfigError: If there is no such device here.

    Example:
        >>> device_named("cpu")
        device(type='cpu')
        >>> device_named("gpu:7")
        Traceback (most recent call last):
        ...
        eblvm_lit.errors.ConfigError: There is no device gpu:7 here: choose auto, cpu...
    """
    has_cuda = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if has_cuda else "cpu")
    try:
        device = torch.device(name.replace("gpu", "cuda", 1) if isinstance(name, str) else name)
        torch.empty(0, device=device)
    except (RuntimeError, TypeError, AssertionError):  # torch's reasons speak of drivers and builds
        others = f" or cuda:0 to cuda:{torch.cuda.device_count() - 1}" if has_cuda else ""
        raise ConfigError(f"There is no device {name} here: choose auto, cpu{others}.") from None
    return device


@contextmanager
def threads(n: int | None) -> Iterator[None]:
    """Use n CPU threads inside the block; None keeps the present number.

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
def flush_subnormals() -> Iterator[None]:
    """Inside the block, numbers of this thread below 1.2e-38 (2.2e-308 in double precision) count as zero.

    A CPU computes with such numbers many times as slowly. A trained network with saturated units makes a few percent of
    them, among activations, gradients and their squares, and its iteration took five times as long.

    Example:
        >>> with flush_subnormals():
        ...     torch.tensor(1e-39) * 1.0
        tensor(0.)
        >>> bool(torch.tensor(1e-39) * 1.0 > 0)
        True
    """
    before = not bool(torch.tensor(1e-39) * 1.0 > 0)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


@contextmanager
def tf32(allowed: bool | None) -> Iterator[None]:
    """Allow or forbid TF32 for float32 matrix products and convolutions inside the block; None keeps the settings.

    Torch's default allows TF32 for convolutions and forbids it for matrix products. A CPU does not use TF32.

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
