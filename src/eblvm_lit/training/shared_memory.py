"""Sums over processes of one machine through memory that they share, in a fraction of the time that sockets take."""

from __future__ import annotations

import os
import platform
import socket
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from eblvm_lit.core.ranks import barrier, first_reason, gather_objects, rank_and_size

__all__ = ["SharedMemory", "empty_row", "sum_over_processes", "write"]

FOLDER = Path("/dev/shm")
SLOT = 2**20  # bytes that each process writes at a time
APART = SLOT + 33 * 64  # bytes between two slots: at a power of two they would compete for the same lines of a cache
LINE = 64  # bytes between the counters of two processes, which then do not slow each other down
LARGEST = 8  # processes: each of them adds up what all have written
# How often a waiting process looks again at once, and the seconds between two looks after that, and between two looks
# whether the others are still there.
SPINS, PAUSE, ALIVE = 2000, 1e-4, 1.0


class SharedMemory:
    """Two slots for each of a few processes, and a counter that says how many it has filled.

    A process fills a slot of its own, waits until all have, and adds the slots up in the order of the ranks, so that
    all get the same bits. It fills the other slot next. When all have filled that one, all have read the first.

    Args:
        memory: Zeros that all processes see, :meth:`n_bytes` of them.
        rank: Of this process.
        pids: The numbers that the system gives the processes, by rank.
    """

    def __init__(self, memory: Tensor, rank: int, pids: list[int]) -> None:
        size, self.rank, self.pids, self.turn = len(pids), rank, pids, 0
        self.counters = memory[: LINE * size].view(torch.int64).numpy()[:: LINE // 8]
        self.slots = memory[LINE * size :].view(2, size, APART)[..., :SLOT]

    @staticmethod
    def n_bytes(size: int) -> int:
        """Of the memory of some processes.

        Example:
            >>> SharedMemory.n_bytes(2) < 5 * 2**20
            True
        """
        return (LINE + 2 * APART) * size

    def sum(self, row: list[Tensor], weight: float) -> Tensor:
        """The weighted sum over the processes, in two passes over memory.

        Args:
            row: Tensors on the CPU, of the same shapes in all processes.
            weight: Of this process.

        Returns:
            The numbers of all tensors in a row.

        Raises:
            RuntimeError: If another process has ended.
        """
        total = empty_row(row)
        step = SLOT // total.element_size()
        for begin in range(0, len(total), step):
            self.turn, out = self.turn + 1, total[begin : begin + step]
            slots = self.slots[self.turn % 2].view(out.dtype)[:, : len(out)]
            write(row, weight, begin, slots[self.rank])
            self._wait()
            torch.add(slots[0], slots[1], out=out)
            for slot in slots[2:]:
                out.add_(slot)
        return total

    def _wait(self) -> None:
        """Say that this process' slot is filled, and wait until all are."""
        self.counters[self.rank] = self.turn
        n_looks, checked = 0, time.monotonic()
        while self.counters.min() < self.turn:
            n_looks += 1
            if n_looks < SPINS:
                os.sched_yield()
                continue
            time.sleep(PAUSE)
            if time.monotonic() - checked > ALIVE:
                checked = time.monotonic()
                self._check()

    def _check(self) -> None:
        for rank, pid in enumerate(self.pids):
            try:
                os.kill(pid, 0)  # no signal: only whether it could be sent
            except ProcessLookupError:
                raise RuntimeError(f"process {rank} has ended") from None


def empty_row(row: list[Tensor]) -> Tensor:
    """Room for the numbers of several tensors, in a dtype that holds all of theirs."""
    dtype = row[0].dtype
    for x in row[1:]:
        dtype = torch.promote_types(dtype, x.dtype)
    return row[0].new_empty(sum(x.numel() for x in row), dtype=dtype)


def write(row: list[Tensor], weight: float, begin: int, out: Tensor) -> None:
    """Write the numbers of several tensors in a row, times a weight, from the begin-th on as many as there is room for.

    Example:
        >>> out = torch.zeros(3)
        >>> write([torch.tensor([1.0, 2.0]), torch.tensor([[3.0], [4.0]])], 2.0, 1, out)
        >>> out
        tensor([4., 6., 8.])
    """
    for x in row:
        low, high = max(begin, 0), min(begin + len(out), x.numel())
        if low < high:
            to, numbers = out[low - begin : high - begin], x.reshape(-1)[low:high]
            if weight == 1:  # integers, too
                to.copy_(numbers)
            else:
                torch.mul(numbers, weight, out=to)
        begin -= x.numel()


def _make() -> SharedMemory | None:
    """The memory that all processes of the group share; None, in all of them, where they cannot share any."""
    rank, size = rank_and_size()
    # a counter written after a slot must be seen after it, which other processors do not promise
    fit = size <= LARGEST and FOLDER.is_dir() and platform.machine() in ("x86_64", "AMD64")
    hosts, pids = zip(*gather_objects((socket.gethostname() if fit else None, os.getpid())), strict=True)
    if hosts[0] is None or len({*hosts}) > 1 or len({*pids}) < size:
        return None
    path, reason, n_bytes = "", None, SharedMemory.n_bytes(size)
    try:
        if rank == 0:
            descriptor, path = tempfile.mkstemp(prefix="eblvm_lit_", dir=FOLDER)
            os.posix_fallocate(descriptor, 0, n_bytes)  # an error now instead of a crash later, if there is too little
            os.close(descriptor)
    except OSError as error:
        reason = str(error)
    path = gather_objects(path)[0]
    try:
        if first_reason(reason) is not None:
            return None
        if not Path(path).is_file():
            reason = "another machine of the same name"
        if first_reason(reason) is not None:
            return None
        memory = torch.from_file(path, shared=True, size=n_bytes, dtype=torch.uint8)
        barrier()  # all have opened it before it loses its name
        return SharedMemory(memory, rank, list(pids))
    finally:
        if rank == 0 and path:
            Path(path).unlink(missing_ok=True)


# The group of processes, and what they share.
_of_group: tuple[object, SharedMemory | None] = (None, None)


def sum_over_processes(row: list[Tensor], weight: float = 1.0) -> Tensor:
    """The weighted sum of tensors over processes: through shared memory where they can, by torch elsewhere.

    Args:
        row: Of the same shapes in all processes.
        weight: Of this process.

    Returns:
        Their numbers in a row, in a dtype that holds all of theirs.
    """
    global _of_group
    if row[0].device.type == "cpu":
        if _of_group[0] is not dist.group.WORLD:
            _of_group = (dist.group.WORLD, _make())
        memory = _of_group[1]
        if memory is not None:
            return memory.sum(row, weight)
    total = empty_row(row)
    write(row, weight, 0, total)
    dist.all_reduce(total)
    return total
