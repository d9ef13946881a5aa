"""Differentiable reductions over processes: weighted means and gathers of rows."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["comm_counter", "gather_shards", "weighted_means"]

# The "calls" of this process to the reduction below, and the "bytes" of the reduced tensors.
comm_counter: Counter[str] = Counter()


@torch.library.custom_op(
    "eblvm_lit::sum_over_processes", mutates_args=(), schema="(Tensor[] row, float weight, Tensor? after) -> Tensor"
)
def _sum(row: list[Tensor], weight: float, after: Tensor | None) -> Tensor:  # noqa: ARG001
    """The weighted sum over processes of the numbers of several tensors, in a row.

    One operation, which a compiler neither looks into nor leaves out: the kernel that it would make of the row takes
    several times as long as copies. ``after`` is the sum before it in a compiled iteration, and keeps their order.
    """
    total = torch.cat([x.reshape(-1) for x in row])
    if weight != 1:  # integers have no weight
        total *= weight
    dist.all_reduce(total)
    comm_counter.update(calls=1, bytes=total.nbytes)
    return total


@_sum.register_fake
def _(row: list[Tensor], weight: float, after: Tensor | None) -> Tensor:  # noqa: ARG001
    return torch.cat([x.reshape(-1) for x in row])


# Compilers take these functions as they are, with their derivatives, instead of following them to first order only.
@torch.compiler.allow_in_graph
class _Mean(torch.autograd.Function):
    """Weighted means over processes, which are their own adjoint: the backward pass is the same, to any order."""

    @staticmethod
    def forward(weight: float, *tensors: Tensor) -> tuple[Tensor, ...]:
        means = _sum(list(tensors), weight, None).split([x.numel() for x in tensors])
        return tuple(mean.view(x.shape).to(x.dtype) for mean, x in zip(means, tensors, strict=True))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:  # noqa: ARG004
        ctx.weight = inputs[0]

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        return None, *_Mean.apply(ctx.weight, *cotangents)


@torch.compiler.allow_in_graph
class _Gather(torch.autograd.Function):
    """All rows, each from the process that holds it."""

    @staticmethod
    def forward(x: Tensor, rows: Tensor, n: int, weight: float) -> Tensor:  # noqa: ARG004 - used by the derivative
        whole = x.new_zeros(n, *x.shape[1:]).index_copy(0, rows, x)
        return _sum([whole], 1.0, None).view(whole.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int, float], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(inputs[1])
        ctx.weight = inputs[3]

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None, None]:
        (rows,) = ctx.saved_tensors
        # these rows enter the loss of every process, and each loss is a mean over a part of the minibatch
        return _Mean.apply(ctx.weight, cotangent)[0].index_select(0, rows) / ctx.weight, None, None, None


def weighted_means(tensors: list[Tensor], weight: float) -> tuple[Tensor, ...]:
    r""":math:`\sum_r w_r x_r` over processes r, in one exchange; differentiable to any order and inside ``torch.func``.

    Args:
        tensors: x, of any shapes, the same in all processes.
        weight: w_r of this process; the weights of all processes sum to one.
    """
    return _Mean.apply(weight, *tensors)


def gather_shards(x: Tensor, rows: Tensor, n: int, weight: float) -> Tensor:
    """All n rows in order; differentiable like :func:`weighted_means`.

    Args:
        x: The rows of this process, shape (B, ...).
        rows: Their indices in the whole, shape (B,).
        n: The number of rows of the whole.
        weight: The weight of the rows of this process in means over the minibatch.
    """
    return _Gather.apply(x, rows, n, weight)
