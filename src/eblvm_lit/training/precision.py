"""The choice of ``trainer.precision``: float32, float64, or bfloat16 on devices that support it in hardware."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from eblvm_lit.methods.base import Method

__all__ = ["choose_precision"]

SINGLE = "32-true"
HALF = "bf16-mixed"


def choose_precision(
    wanted: str, method: Method, device: torch.device, before: str | None = None
) -> tuple[str, str | None]:
    """Return the precision of a run and, if ``auto`` has chosen it, the reason as a phrase.

    Args:
        wanted: The value of ``trainer.precision``.
        method: The method that is trained.
        device: The device of the run.
        before: The precision of the checkpoint that the run resumes from, which ``auto`` keeps; None for a new run.

    Example:
        >>> choose_precision("64-true", None, torch.device("cpu"))
        ('64-true', None)
    """
    if wanted != "auto":
        return wanted, None
    if before is not None:
        return before, "as in the checkpoint"
    reason = method.float32_reason()
    if reason is None and not any(isinstance(m, nn.Conv2d | nn.ConvTranspose2d) for m in method.modules()):
        reason = "as the model has no convolutions"
    if reason is None and not multiplies_bfloat16(device):
        reason = f"as this {device.type} has no units for bfloat16"
    return (HALF, f"as this {device.type} has units for it") if reason is None else (SINGLE, reason)


def multiplies_bfloat16(device: torch.device) -> bool:
    """Return whether a device multiplies bfloat16 matrices in hardware; emulation is up to 50 times slower.

    Example:
        >>> multiplies_bfloat16(torch.device("meta"))
        False
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    try:
        return device.type == "cpu" and "avx512_bf16" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
