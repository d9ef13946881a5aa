"""Torch's global settings: CPU threads, subnormal numbers and TF32 as context managers; devices by their names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from eblvm_lit.errors import ConfigError

__all__ = ["find_device", "flush_subnormals", "tf32", "threads"]


def find_device(device: str | int | torch.device) -> torch.device:
    """The device of this machine that a word names.

    Args:
        device: As for torch, such as ``cpu`` or ``cuda:0``; ``gpu`` for the accelerator of this machine, whatever its
            kind, and ``auto`` for it or, where there is none, the CPU.

    Raises:
        ConfigError: If there is no such device.

    Example:
        >>> find_device("cpu")
        device(type='cpu')
        >>> find_device("tpu0")
        Traceback (most recent call last):
        ...
        eblvm_lit.errors.ConfigError: device=tpu0: there is no such device on this machine; use cpu, ...
    """
    wanted: Any = device
    if device in ("auto", "gpu"):
        wanted = torch.accelerator.current_accelerator(check_available=True) or ("cpu" if device == "auto" else None)
    try:
        found = torch.device(wanted)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, TypeError, ValueError, ImportError):  # whatever torch and its backends raise
        found = None
    if found is None or found.type == "meta":  # which holds no numbers
        raise ConfigError(
            f"device={device}: there is no such device on this machine; use cpu, or auto for an accelerator where "
            "there is one."
        )
    return found


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
