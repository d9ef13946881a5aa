"""Differentiable reductions over processes: weighted means and gathers of rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from eblvm_lit.distributed.shared_memory import sum_

__all__ = ["CommCounter", "comm_counter", "gather_shards", "weighted_mean"]


class CommCounter:
    """Counts the communication of this process.

    Attributes:
        calls: The number of reductions.
        bytes: The total size of the reduced tensors.
    """

    def __init__(self) -> None:
        self.calls, self.bytes = 0, 0

    def add(self, x: Tensor) -> None:
        """Count the reduction of a tensor."""
        self.calls += 1
        self.bytes += x.numel() * x.element_size()


comm_counter = CommCounter()


@torch.library.custom_op("eblvm_lit::sum_over_processes", mutates_args=(), schema="(Tensor x, Tensor? after) -> Tensor")
def _sum(x: Tensor, after: Tensor | None) -> Tensor:  # noqa: ARG001 - orders the sums of a compiled iteration
    """The sum over processes: one operation, which a compiler neither looks into nor leaves out."""
    total = x.clone(memory_format=torch.contiguous_format)
    comm_counter.add(total)
    sum_(total)
    return total


@_sum.register_fake
def _(x: Tensor, after: Tensor | None) -> Tensor:  # noqa: ARG001
    return torch.empty_like(x, memory_format=torch.contiguous_format)


# Compilers take these functions as they are, with their derivatives, instead of following them to first order only.
@torch.compiler.allow_in_graph
class _Mean(torch.autograd.Function):
    """The weighted mean over processes, which is its own adjoint: its backward pass is itself, to any order."""

    @staticmethod
    def forward(x: Tensor, weight: float) -> Tensor:
        return _sum(x * weight, None)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:  # noqa: ARG004
        ctx.weight = inputs[1]

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        return _Mean.apply(cotangent, ctx.weight), None


@torch.compiler.allow_in_graph
class _Gather(torch.autograd.Function):
    """All rows, each from the process that holds it."""

    @staticmethod
    def forward(x: Tensor, rows: Tensor, n: int, weight: float) -> Tensor:  # noqa: ARG004 - used by the derivative
        return _sum(x.new_zeros(n, *x.shape[1:]).index_copy(0, rows, x), None)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int, float], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(inputs[1])
        ctx.weight = inputs[3]

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None, None]:
        (rows,) = ctx.saved_tensors
        # these rows enter the loss of every process, and each loss is a mean over a part of the minibatch
        return _Mean.apply(cotangent, ctx.weight).index_select(0, rows) / ctx.weight, None, None, None


def weighted_mean(x: Tensor, weight: float) -> Tensor:
    r""":math:`\sum_r w_r x_r` over processes r; differentiable to any order and inside of ``torch.func``.

    Args:
        x: Any shape, the same in all processes.
        weight: w_r of this process; the weights of all processes sum to one.
    """
    return _Mean.apply(x, weight)


def gather_shards(x: Tensor, rows: Tensor, n: int, weight: float) -> Tensor:
    """All n rows in order; differentiable like :func:`weighted_mean`.

    Args:
        x: The rows of this process, shape (B, ...).
        rows: Their indices in the whole, shape (B,).
        n: The number of rows of the whole.
        weight: The weight of the rows of this process in means over the minibatch.
    """
    return _Gather.apply(x, rows, n, weight)
