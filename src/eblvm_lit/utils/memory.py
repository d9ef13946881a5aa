"""How much memory a run needs, where it comes from, and what to say where there is not enough."""

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
# Numbers of glibc's malloc.h.
TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4


class MemoryMeter:
    """Measures the largest amount of memory in use since it was made, above what was in use then.

    On a GPU that of torch's allocator; elsewhere the resident memory of this process, which Linux alone tells, and
    from which what the process has freed without giving it back is taken first.

    Args:
        device: Where the computation is.

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
                RESET.write_text("5")  # sets the peak to what is in use now
                self.start = _resident("VmHWM")
            except (OSError, AttributeError, TypeError):  # another system or C library, or not allowed
                self.start = None

    def peak(self) -> float | None:
        """The largest amount so far in MiB; None where it cannot be measured."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / 2**20 - self.start
        return None if self.start is None else _resident("VmHWM") - self.start


def _resident(name: str) -> float:
    """An entry of this process' status, MiB."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) / 2**10


@contextmanager
def keep_freed_cpu_memory(keep: bool) -> Iterator[None]:
    """Within, memory that tensors on the CPU free is kept for the next ones; after it, it goes back to the system.

    glibc otherwise returns the memory of every tensor above 32 MiB as soon as it is freed, and the system clears each
    page of it again before the next use: about a tenth of an iteration of BiDVL's published networks. Nothing is
    changed where ``keep`` is false, under another C library, or where the environment says what glibc is to do.

    Args:
        keep: Whether to.

    Example:
        >>> with keep_freed_cpu_memory(True):
        ...     total = sum(torch.ones(2**24).sum() for _ in range(3))
    """
    library = ctypes.CDLL(None) if os.name == "posix" else None
    mallopt = getattr(library, "mallopt", None)
    chosen = "malloc" in os.environ.get("GLIBC_TUNABLES", "") or any(k.startswith("MALLOC_") for k in os.environ)
    if not keep or mallopt is None or chosen:
        yield
        return
    mallopt(MMAP_MAX, 0)
    mallopt(TRIM_THRESHOLD, -1)
    try:
        yield
    finally:
        # What glibc itself arrives at in a process that has had large tensors; its counting stops at the first mallopt.
        mallopt(MMAP_MAX, 2**16)
        mallopt(MMAP_THRESHOLD, 2**25)
        mallopt(TRIM_THRESHOLD, 2**26)
        library.malloc_trim(0)


def out_of_memory(error: torch.OutOfMemoryError, where: str, hints: Sequence[str]) -> ConfigError:
    """What to raise in the place of torch's error: what was asked for, what was in use, and what helps.

    Args:
        error: Of which the numbers are read, and the stack, which may hold what there is no room for, is let go.
        where: What was going on.
        hints: What would need less, each as a verb and its object.

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
