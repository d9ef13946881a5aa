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

__all__ = ["MemoryMeter", "keep_freed_cpu_memory", "lacks_memory", "out_of_memory", "within_memory"]

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
MEMINFO, CONTAINER = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")
UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
# How torch and its libraries say on a CPU that memory is lacking, or that a size in bytes has more than 64 bits.
NO_MEMORY = (
    *("can't allocate memory", "Storage size calculation overflowed", "not enough memory", "could not create a memory"),
    *("numel: integer multiplication overflow", "overflowed with sizes", "std::bad_alloc"),
)
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


def lacks_memory(error: BaseException) -> bool:
    """Whether an error says that there is too little memory: torch's for GPUs, torch's for CPUs, numpy's, Python's.

    Example:
        >>> lacks_memory(MemoryError()), lacks_memory(RuntimeError("The size of tensor a must match"))
        (True, False)
    """
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in NO_MEMORY)
    )


def total_memory() -> int | None:
    """The bytes of memory that this machine or container has, swap included; None where they cannot be read.

    Example:
        >>> total_memory() is None or total_memory() > 2**20
        True
    """
    try:
        lines = MEMINFO.read_text().splitlines()
    except OSError:
        return None
    total = sum(int(line.split()[1]) * 2**10 for line in lines if line.startswith(("MemTotal:", "SwapTotal:")))
    try:
        return min(total, int(CONTAINER.read_text()))
    except (OSError, ValueError):  # "max"
        return total


@contextmanager
def within_memory() -> Iterator[None]:
    """Inside the block, whoever asks for more memory than this machine has gets an error, and a sentence leaves it.

    Linux grants more than there is, and kills the process that uses it, without a word. The limit is on memory that the
    process writes to, not on files that it maps. On a machine with a GPU, whose driver maps much more than it uses,
    there is none.

    Raises:
        ConfigError: Instead of an error for which :func:`lacks_memory` holds.

    Example:
        >>> with within_memory():
        ...     torch.empty(2**52)
        Traceback (most recent call last):
        ...
        eblvm_lit.errors.ConfigError: Out of memory (16 PiB more were asked for): ask for fewer or smaller arrays.
    """
    try:
        with _limited(None if torch.cuda.is_available() else total_memory()):
            yield
    except (MemoryError, RuntimeError) as error:
        if not lacks_memory(error):
            raise
        raise out_of_memory(error, "", ["ask for fewer or smaller arrays"]) from None


@contextmanager
def _limited(n_bytes: int | None) -> Iterator[None]:
    """Inside the block, this process may write to so many bytes at most; a lower limit that it has stays."""
    if n_bytes is None:
        yield
        return
    import resource  # not on Windows, where nothing says how much there is

    before = resource.getrlimit(resource.RLIMIT_DATA)
    lowest = min([n_bytes, *(limit for limit in before if limit != resource.RLIM_INFINITY)])
    resource.setrlimit(resource.RLIMIT_DATA, (lowest, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def out_of_memory(error: BaseException, where: str, hints: Sequence[str]) -> ConfigError:
    """Turn an out-of-memory error into a message with the requested size, the memory in use and remedies.

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
    size = r"([\d.]+ [KMGTPE]?i?B)"
    text = re.sub(r"allocate (\d+) bytes", lambda found: f"allocate {_binary(int(found[1]))}", str(error))
    asked, in_use = re.search(rf"allocate {size}", text), re.search(rf"{size} is allocated by PyTorch", text)
    numbers = [f"{asked[1]} more were asked for"] if asked else []
    numbers += [f"{in_use[1]} were in use"] if in_use else []
    detail = f" ({', '.join(numbers)})" if numbers else ""
    error.with_traceback(None)
    return ConfigError(f"Out of memory{f' {where}' if where else ''}{detail}: {', or '.join(hints)}.")


def _binary(n_bytes: int) -> str:
    """A number of bytes in a binary unit."""
    power = min((max(n_bytes, 1).bit_length() - 1) // 10, len(UNITS) - 1)
    return f"{n_bytes / 2 ** (10 * power):.3g} {UNITS[power]}"
