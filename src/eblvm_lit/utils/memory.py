"""Measuring peak memory, keeping freed CPU memory for reuse, and the message for running out of memory."""

from __future__ import annotations

import ctypes
import gc
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from eblvm_lit.errors import ConfigError

__all__ = ["MemoryMeter", "keep_freed_cpu_memory", "out_of_memory"]

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
# Constants of glibc's malloc.h.
TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4


class MemoryMeter:
    """Measures the peak memory since its construction, relative to the memory in use at that time.

    On a GPU it reads torch's allocator. On a CPU it reads the resident memory of the process, which only Linux reports;
    memory that the process has freed is returned to the system first.

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
            self.start = torch.cuda.memory_allocated(device) / 2**20
        else:
            try:
                gc.collect()
                ctypes.CDLL(None).malloc_trim(0)
                RESET.write_text("5")  # resets the recorded peak
                self.start = _resident("VmHWM")
            except (OSError, AttributeError, TypeError):  # another system or C library, or no permission
                self.start = None

    def peak(self) -> float | None:
        """The peak so far in MiB; None if it cannot be measured."""
        if self.start is None:
            return None
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / 2**20 - self.start
        return _resident("VmHWM") - self.start


def _resident(name: str) -> float:
    """An entry of /proc/self/status in MiB."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) / 2**10


@contextmanager
def keep_freed_cpu_memory(keep: bool) -> Iterator[None]:
    """Inside the block, keep memory that CPU tensors free for the next tensors; afterwards, return it to the system.

    Otherwise glibc returns the memory of every tensor above 32 MiB when it is freed, and the system clears each page
    before its next use, which takes about a tenth of an iteration of BiDVL's published networks. The function changes
    nothing if ``keep`` is false, under another C library, or if environment variables configure glibc's malloc.

    Args:
        keep: Whether to keep freed memory.

    Example:
        >>> with keep_freed_cpu_memory(True):
        ...     total = sum(torch.ones(2**24).sum() for _ in range(3))
    """
    library = ctypes.CDLL(None) if os.name == "posix" else None
    mallopt, trim = getattr(library, "mallopt", None), getattr(library, "malloc_trim", None)
    chosen = "malloc" in os.environ.get("GLIBC_TUNABLES", "") or any(k.startswith("MALLOC_") for k in os.environ)
    if not keep or mallopt is None or trim is None or chosen:
        yield
        return
    mallopt(MMAP_MAX, 0)
    mallopt(TRIM_THRESHOLD, -1)
    try:
        yield
    finally:
        # the values that glibc itself adapts to in a process with large tensors; the first mallopt ends its adaptation
        mallopt(MMAP_MAX, 2**16)
        mallopt(MMAP_THRESHOLD, 2**25)
        mallopt(TRIM_THRESHOLD, 2**26)
        trim(0)


def out_of_memory(error: torch.OutOfMemoryError, where: str, hints: Sequence[str]) -> ConfigError:
    """Turn torch's out-of-memory error into a message with the requested size, the memory in use and remedies.

    Args:
        error: The error; its traceback is dropped, because the frames keep large tensors alive.
        where: Where it happened.
        hints: Changes that need less memory, each as a verb and its object.

    Example:
        >>> error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...")
        >>> print(out_of_memory(error, "in iteration 1", ["lower data.batch_size", "use hypergradient=implicit"]))
        Out of memory in iteration 1 (2.00 GiB more were asked for): lower data.batch_size, or use
        hypergradient=implicit.
    """
    text, size = str(error), r"([\d.]+ [KMGT]?i?B)"
    asked, in_use = re.search(rf"allocate {size}", text), re.search(rf"{size} is allocated by PyTorch", text)
    numbers = [f"{asked[1]} more were asked for"] if asked else []
    numbers += [f"{in_use[1]} were in use"] if in_use else []
    detail = f" ({', '.join(numbers)})" if numbers else ""
    error.with_traceback(None)
    return ConfigError(f"Out of memory {where}{detail}: {', or '.join(hints)}.")
