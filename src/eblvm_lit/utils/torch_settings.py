"""A context manager that changes torch's global settings, and a function that finds a device by its name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from eblvm_lit.errors import ConfigError

__all__ = ["find_device", "torch_settings"]


def find_device(device: str | int | torch.device) -> torch.device:
    """Return the device of this machine for a name such as ``cuda:0`` or ``auto``.

    Args:
        device: A device of torch, such as ``cpu`` or ``cuda:0``; ``gpu`` for the accelerator of this machine, whatever
            its kind; ``auto`` for the accelerator or, if there is none, the CPU.

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
    """Set the number of CPU threads and the use of TF32 in the block, and flush subnormal numbers to zero.

    Subnormal numbers are smaller than 1.2e-38 (in double precision 2.2e-308), and CPUs compute many times more slowly
    with them. In a trained network with saturated units a few percent of the activations, gradients and squared
    gradients were subnormal, and an iteration of the network took five times as long.

    Args:
        threads: The number of CPU threads; None keeps the current number.
        tf32: Whether float32 products and convolutions on a GPU may use TF32. None keeps torch's default, which allows
            it only for convolutions.

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
