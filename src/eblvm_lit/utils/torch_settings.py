"""Torch's global settings as a context manager, and devices by their names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from eblvm_lit.errors import ConfigError

__all__ = ["find_device", "torch_settings"]


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
    found: Any = device
    if device in ("auto", "gpu"):
        none = "cpu" if device == "auto" else "cuda"
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else none
    try:
        return torch.empty(0, device=found).device
    except (RuntimeError, AssertionError):
        raise ConfigError(
            f"device={device}: there is no such device on this machine; use cpu, or auto for an accelerator where "
            "there is one."
        ) from None


@contextmanager
def torch_settings(threads: int | None = None, tf32: bool | None = None) -> Iterator[None]:
    """Inside the block: some CPU threads, TF32 or not, and numbers below 1.2e-38 (double: 2.2e-308) count as zero.

    A CPU computes with such subnormal numbers many times as slowly. A trained network with saturated units makes a few
    percent of them, among activations, gradients and their squares, and its iteration took five times as long.

    Args:
        threads: CPU threads; None keeps their number.
        tf32: Whether float32 products and convolutions of a GPU may use TF32. None keeps torch's default, which allows
            it for convolutions alone.

    Example:
        >>> with torch_settings(threads=1, tf32=True):
        ...     torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.tensor(1e-39) * 1.0
        (1, 'high', tensor(0.))
        >>> torch.get_float32_matmul_precision(), bool(torch.tensor(1e-39) * 1.0 > 0)
        ('highest', True)
    """
    before = torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_num_threads(threads or before[0])
    torch.set_flush_denormal(True)
    if tf32 is not None:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.set_flush_denormal(False)
        torch.set_float32_matmul_precision(before[1])
        torch.backends.cudnn.allow_tf32 = before[2]
