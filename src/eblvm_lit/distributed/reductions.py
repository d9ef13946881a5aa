"""Means over the whole minibatch where processes share it: through these, R processes do what one does."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from eblvm_lit.core.functional import Params
from eblvm_lit.distributed.shards import Shard, current_shard

__all__ = ["CommCounter", "mean_over_ranks", "params_over_ranks", "traffic", "whole_minibatch"]


class CommCounter:
    """What all reductions of this process have been given so far.

    Attributes:
        calls: How many they were.
        bytes: How much they reduced.
    """

    def __init__(self) -> None:
        self.calls, self.bytes = 0, 0

    def add(self, x: Tensor) -> None:
        """Count a tensor that is about to be reduced."""
        self.calls += 1
        self.bytes += x.numel() * x.element_size()


traffic = CommCounter()


def _sum(x: Tensor) -> Tensor:
    """The sum over processes, in the place of a tensor of the caller's own."""
    x = x.contiguous()
    traffic.add(x)
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


def mean_over_ranks(x: Tensor) -> Tensor:
    r"""The mean over the whole minibatch of what is a mean over this process' rows.

    .. math:: \bar x = \sum_r \tfrac{n_r}{n} x_r

    Differentiable, to any order and inside of ``torch.func``: where a loss is the mean of the processes' losses J_r,
    what the gradient of J_r alone gives in process r has the mean over processes that is the gradient of the loss, if
    all that they have in common went through here. x itself where nothing is shared.

    Args:
        x: Any shape, the same in all processes.

    Example:
        >>> mean_over_ranks(torch.ones(2))
        tensor([1., 1.])
    """
    share = current_shard()
    return x if share is None else _Mean.apply(x, share.weight)


def params_over_ranks(params: Params) -> Params:
    """:func:`mean_over_ranks` of several tensors, all of them in one reduction.

    Example:
        >>> params_over_ranks({"w": torch.ones(2), "loss": torch.tensor(3.0)})
        {'w': tensor([1., 1.]), 'loss': tensor(3.)}
    """
    if current_shard() is None or not params:
        return params
    flat = mean_over_ranks(torch.cat([p.reshape(-1) for p in params.values()]))
    parts = flat.split([p.numel() for p in params.values()])
    return {name: part.view(p.shape).to(p.dtype) for part, (name, p) in zip(parts, params.items(), strict=True)}


def whole_minibatch(x: Tensor, share: Shard | None = None) -> Tensor:
    """All rows of what processes share, in their order; differentiable as :func:`mean_over_ranks` is.

    Args:
        x: This process' rows, shape (B, ...).
        share: Which rows those are; those of the minibatch if not given.

    Returns:
        Shape (n, ...); x itself where nothing is shared.

    Example:
        >>> whole_minibatch(torch.arange(3))
        tensor([0, 1, 2])
    """
    batch = current_shard()
    if batch is None:
        return x
    share = share or batch
    return _Gather.apply(x, share.rows, share.n, batch.weight)
