"""A meter of the peak memory of this process."""

from __future__ import annotations

import ctypes
import platform
import re
from pathlib import Path

import torch

__all__ = ["MemoryMeter"]

STATUS = Path("/proc/self/status")
RESET = Path("/proc/self/clear_refs")


class MemoryMeter:
    """A meter of the peak memory since its construction, relative to the memory in use at that time.

    On a GPU it reads torch's allocator; on a CPU it reads the resident memory of the process, which only Linux reports.

    Args:
        device: The device of the computation.

    Example:
        >>> meter = MemoryMeter(torch.device("cpu"))
        >>> big = torch.ones(25 * 2**20)  # 100 MiB
        >>> peak = meter.peak()
        >>> peak is None or 80 < peak < 200
        True
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        elif RESET.exists():
            if platform.libc_ver()[0] == "glibc":
                # Return freed memory to the system. Otherwise new tensors would reuse it, and the peak would not grow.
                ctypes.CDLL(None).malloc_trim(0)
            RESET.write_text("5")  # writing "5" resets the recorded peak
        self.start = self._peak()

    def _peak(self) -> float | None:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / 2**20
        found = re.search(r"VmHWM:\s*(\d+)", STATUS.read_text()) if STATUS.exists() else None
        return int(found[1]) / 2**10 if found else None

    def peak(self) -> float | None:
        """Return the peak memory so far in MiB, or None if it cannot be measured."""
        peak = self._peak()
        return None if peak is None or self.start is None else peak - self.start
