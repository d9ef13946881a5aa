"""The rank of a process, barriers, and collective sums and gathers without gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["barrier", "first_rank_first", "gather_objects", "largest_over_ranks", "rank_and_size", "sum_over_ranks"]

Result = TypeVar("Result")


def rank_and_size() -> tuple[int, int]:
    """Return the rank of this process and the number of processes.

    Example:
        >>> rank_and_size()
        (0, 1)
    """
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def barrier() -> None:
    """Wait until all processes have reached this call, if there are several."""
    if rank_and_size()[1] > 1:
        dist.barrier()


def _exchangeable(x: Tensor) -> Tensor:
    """Move a tensor to the device type of the process group's backend: a GPU for NCCL, else the CPU."""
    return x.to("cuda" if dist.get_backend() == "nccl" else "cpu")


def sum_over_ranks(x: Tensor) -> Tensor:
    """Sum the tensor x over all processes; the result is on the device of x.

    Example:
        >>> sum_over_ranks(torch.ones(2))
        tensor([1., 1.])
    """
    if rank_and_size()[1] == 1:
        return x
    total = _exchangeable(x).clone()
    dist.all_reduce(total)
    return total.to(x.device)


def first_rank_first(task: Callable[[], Result]) -> Result:
    """Run a task in the first process and then in the others, which can use the files that the first process wrote.

    Example:
        >>> first_rank_first(lambda: "found")
        'found'
    """
    rank, size = rank_and_size()
    if rank > 0:
        dist.barrier()
    try:
        return task()
    finally:
        if size > 1 and rank == 0:
            dist.barrier()


def gather_objects(item: Result) -> list[Result]:
    """Gather an object from each process, ordered by rank.

    Example:
        >>> gather_objects({"fisher": 1.0})
        [{'fisher': 1.0}]
    """
    size = rank_and_size()[1]
    if size == 1:
        return [item]
    items: list[Any] = [None] * size
    dist.all_gather_object(items, item)
    return items


def largest_over_ranks(number: int) -> int:
    """Return the maximum of a number over all processes.

    Example:
        >>> largest_over_ranks(15)
        15
    """
    if rank_and_size()[1] == 1:
        return number
    largest = _exchangeable(torch.tensor(number))
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return int(largest)
