"""Differentiable reductions over processes: weighted means, and gathered rows."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["CommCounter", "comm_counter", "gather_shards", "weighted_mean"]


class CommCounter:
    """Counts what all reductions of this process exchange.

    Attributes:
        calls: The number of reductions.
        bytes: The size of what they reduced.
    """

    def __init__(self) -> None:
        self.calls, self.bytes = 0, 0

    def add(self, x: Tensor) -> None:
        """Count a tensor that is about to be reduced."""
        self.calls += 1
        self.bytes += x.numel() * x.element_size()


comm_counter = CommCounter()


def _sum(x: Tensor) -> Tensor:
    """The sum over processes; it overwrites x where x is contiguous."""
    x = x.contiguous()
    comm_counter.add(x)
    dist.all_reduce(x)
    return x


class _Mean(torch.autograd.Function):
    """The weighted mean over processes; it is its own adjoint, and so its own derivative of any order."""

    @staticmethod
    def forward(x: Tensor, weight: float) -> Tensor:
        return _sum(x * weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:  # noqa: ARG004
        ctx.weight = inputs[1]

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        return _Mean.apply(cotangent, ctx.weight), None


class _Gather(torch.autograd.Function):
    """All rows, each from the process that has it."""

    @staticmethod
    def forward(x: Tensor, rows: Tensor, n: int, weight: float) -> Tensor:  # noqa: ARG004 - for the derivative
        return _sum(x.new_zeros(n, *x.shape[1:]).index_copy_(0, rows, x))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int, float], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(inputs[1])
        ctx.weight = inputs[3]

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None, None]:
        (rows,) = ctx.saved_tensors
        # every process' loss depends on these rows, and is a mean over a part of the minibatch
        return _Mean.apply(cotangent, ctx.weight).index_select(0, rows) / ctx.weight, None, None, None


def weighted_mean(x: Tensor, weight: float) -> Tensor:
    r""":math:`\sum_r w_r x_r` over processes r; differentiable to any order and inside of ``torch.func``.

    Args:
        x: Any shape, the same in all processes.
        weight: w_r of this process; the weights of all processes sum to one.
    """
    return _Mean.apply(x, weight)


def gather_shards(x: Tensor, rows: Tensor, n: int, weight: float) -> Tensor:
    """All n rows in their order; differentiable as :func:`weighted_mean` is.

    Args:
        x: This process' rows, shape (B, ...).
        rows: Their numbers in the whole, shape (B,).
        n: Rows of the whole.
        weight: Of this process' rows in means over the minibatch.
    """
    return _Gather.apply(x, rows, n, weight)
