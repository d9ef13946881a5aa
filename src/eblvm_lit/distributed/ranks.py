"""Work that several processes share: each takes every R-th image, and what they found is put together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = [
    "barrier",
    "first_rank_first",
    "gather_objects",
    "gather_rows",
    "largest_over_ranks",
    "rank_and_size",
    "sum_over_ranks",
]

Result = TypeVar("Result")


def rank_and_size() -> tuple[int, int]:
    """The number of this process, and how many there are.

    Example:
        >>> rank_and_size()
        (0, 1)
    """
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def barrier() -> None:
    """Wait for all processes, where there are several."""
    if rank_and_size()[1] > 1:
        dist.barrier()


def _exchangeable(x: Tensor) -> Tensor:
    """On the device that the processes talk through."""
    return x.to("cuda" if dist.get_backend() == "nccl" else "cpu")


def sum_over_ranks(x: Tensor) -> Tensor:
    """The sum of the processes' tensors, in each of them; on x's device.

    Example:
        >>> sum_over_ranks(torch.ones(2))
        tensor([1., 1.])
    """
    if rank_and_size()[1] == 1:
        return x
    total = _exchangeable(x).clone()
    dist.all_reduce(total)
    return total.to(x.device)


def gather_rows(rows: Tensor, n: int) -> Tensor:
    """All rows in their order, in each process, where process r of R holds those numbered r, r + R, r + 2R, ...

    Args:
        rows: This process' rows, shape (m, D).
        n: How many there are in all.

    Returns:
        Shape (n, D), on the device of ``rows``.

    Example:
        >>> gather_rows(torch.arange(4.0).view(4, 1), 4).flatten()
        tensor([0., 1., 2., 3.])
    """
    size = rank_and_size()[1]
    if size == 1:
        return rows
    padded = rows.new_zeros(-(-n // size), *rows.shape[1:])
    padded[: len(rows)] = rows
    padded = _exchangeable(padded)
    parts = [torch.empty_like(padded) for _ in range(size)]
    dist.all_gather(parts, padded)
    return torch.stack(parts, dim=1).flatten(0, 1)[:n].to(rows.device)


def first_rank_first(task: Callable[[], Result]) -> Result:
    """Do a task in every process, in the first one before all others: they find the files that it has left.

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


def gather_objects(found: Result) -> list[Result]:
    """What each process has found, in their order, in each of them.

    Example:
        >>> gather_objects({"fisher": 1.0})
        [{'fisher': 1.0}]
    """
    size = rank_and_size()[1]
    if size == 1:
        return [found]
    everything: list[Result] = [None] * size
    dist.all_gather_object(everything, found)
    return everything


def largest_over_ranks(number: int) -> int:
    """The largest of the processes' numbers, in each of them.

    Example:
        >>> largest_over_ranks(15)
        15
    """
    if rank_and_size()[1] == 1:
        return number
    largest = _exchangeable(torch.tensor(number))
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return int(largest)
