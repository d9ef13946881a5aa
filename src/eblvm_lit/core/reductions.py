"""Differentiable reductions over processes: weighted means, and gathers of the rows of tensors."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["comm_counter", "gather_shards", "weighted_means"]

# How many times this process has called the all-reduce in ``_sum`` ("calls"), and how many bytes it has reduced
# ("bytes").
comm_counter: Counter[str] = Counter()


@torch.library.custom_op(
    "eblvm_lit::sum_over_processes", mutates_args=(), schema="(Tensor[] row, float weight, Tensor? after) -> Tensor"
)
def _sum(row: list[Tensor], weight: float, after: Tensor | None) -> Tensor:  # noqa: ARG001
    """Concatenate tensors into one vector, and sum the weighted vectors of all processes in one all-reduce.

    The compiler neither traces nor removes this custom operator. A compiler that traced it would turn the concatenation
    into a kernel that takes several times as long as copies. ``after`` is the result of the preceding sum in a compiled
    iteration; this dependence keeps the sums in order.
    """
    total = torch.cat([x.reshape(-1) for x in row])
    # Integer tensors cannot be multiplied by a float in place. They are summed with weight 1, which needs no
    # multiplication.
    if weight != 1:
        total *= weight
    dist.all_reduce(total)
    comm_counter.update(calls=1, bytes=total.nbytes)
    return total


@_sum.register_fake
def _(row: list[Tensor], weight: float, after: Tensor | None) -> Tensor:  # noqa: ARG001
    return torch.cat([x.reshape(-1) for x in row])


# allow_in_graph keeps the compiler from tracing the two functions below and their derivatives. For functions that it
# traces, it supports only first derivatives.
@torch.compiler.allow_in_graph
class _Mean(torch.autograd.Function):
    """The weighted mean over processes. Its backward pass computes the weighted mean of the cotangents."""

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
    """A differentiable gather of all rows of a tensor from the processes that have them."""

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
        # The gathered rows enter the losses of all processes, so the cotangents are averaged over the processes. The
        # later mean of gradients over processes multiplies this result by the weight of this process, so it is divided
        # by this weight here.
        return _Mean.apply(ctx.weight, cotangent)[0].index_select(0, rows) / ctx.weight, None, None, None


def weighted_means(tensors: list[Tensor], weight: float) -> tuple[Tensor, ...]:
    r"""Compute weighted sums of several tensors over all processes r, :math:`\sum_r w_r x_r`, in one all-reduce.

    The result is differentiable to any order and inside ``torch.func``.

    Args:
        tensors: The tensors x, of any shapes; the shapes are the same in all processes.
        weight: The weight w_r of this process; the weights of all processes sum to one.
    """
    return _Mean.apply(weight, *tensors)


def gather_shards(x: Tensor, rows: Tensor, n: int, weight: float) -> Tensor:
    """Gather all n rows of a tensor in order. The result is differentiable, as in :func:`weighted_means`.

    Args:
        x: The rows in this process, shape (B, ...).
        rows: The indices of these rows in the whole tensor, shape (B,).
        n: The number of rows of the whole tensor.
        weight: The weight of this process' examples in means over the minibatch.
    """
    return _Gather.apply(x, rows, n, weight)
