"""Division of a minibatch (its examples and their noise) into shards, one for each process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from eblvm_lit.core.minibatch import WHOLE, Minibatch
from eblvm_lit.core.ranks import rank_and_size
from eblvm_lit.core.reductions import gather_shards, weighted_means
from eblvm_lit.core.tensors import tree_map
from eblvm_lit.errors import ConfigError

__all__ = ["Shard", "ShardedMinibatch", "check_shared", "minibatch_of", "row_axes", "shard_of", "take_rows"]


class Shard(NamedTuple):
    """The examples of a minibatch, or the rows of another tensor, that are assigned to one process.

    Attributes:
        rows: The indices of these rows in the whole minibatch or tensor, int64.
        n: The number of rows of the whole minibatch or tensor.
    """

    rows: Tensor
    n: int

    @property
    def weight(self) -> float:
        """The shard's fraction of all rows, which is the weight of the shard's mean in the mean over all rows."""
        return len(self.rows) / self.n


def _shard(n: int, rank: int, size: int, device: torch.device) -> Shard:
    half = n // 2
    rows = torch.arange(half * rank // size, half * (rank + 1) // size, device=device)
    odd = [torch.tensor([n - 1], device=device)] if n % 2 and rank == size - 1 else []
    return Shard(torch.cat([rows, rows + half, *odd]), n)


def check_shared(n: int, size: int, what: str = "examples of a minibatch (data.batch_size)") -> None:
    """Raise an error if n rows are too few to be divided among ``size`` processes.

    Args:
        n: The number of rows of the whole minibatch or tensor.
        size: The number of processes.
        what: The name of the rows in the error message, with the configuration key that sets their number.

    Raises:
        ConfigError: If a process would get fewer than two rows.

    Example:
        >>> check_shared(4, 2)
        >>> check_shared(3, 2)
        Traceback (most recent call last):
        eblvm_lit.errors.ConfigError: 3 examples of a minibatch (data.batch_size) are too few for 2 devices, ...
    """
    if size > 1 and n < 2 * size:
        raise ConfigError(
            f"{n} {what} are too few for {size} devices, each of which needs two: use more of them, or lower "
            "trainer.devices."
        )


def shard_of(n: int, device: torch.device | str = "cpu") -> Shard | None:
    r"""Return the shard of n rows that this process computes, or None if every process computes all rows.

    This process computes all rows if there is only one process, or if a process would get fewer than two rows. The last
    minibatch of an epoch may be too small to be divided; then every process computes all of it.

    Both halves of the rows, each of h = n // 2 rows, are divided separately: process r of R gets the rows from
    :math:`\lfloor hr/R \rfloor` to :math:`\lfloor h(r+1)/R \rfloor - 1` of each half, and the last process also gets
    the last row of an odd n. Rows that are paired across the halves, as in the kernelized Stein discrepancy, thus stay
    in one process.

    Args:
        n: The number of rows of the whole minibatch or tensor.
        device: The device of the row indices.

    Example:
        >>> shard_of(100) is None
        True
        >>> [_shard(9, rank, 2, torch.device("cpu")).rows.tolist() for rank in (0, 1)]
        [[0, 1, 4, 5], [2, 3, 6, 7, 8]]
    """
    rank, size = rank_and_size()
    if size == 1 or n < 2 * size:
        return None
    return _shard(n, rank, size, torch.device(device))


class ShardedMinibatch(Minibatch):
    """A minibatch that is divided among several processes; see :class:`~eblvm_lit.core.minibatch.Minibatch`.

    Args:
        shard: The examples in this process.
        loss_weight: The weight of this process' loss in the mean over processes, if the loss is a mean over other
            examples than those of the shard.
    """

    def __init__(self, shard: Shard, loss_weight: float | None = None) -> None:
        self.shard = shard
        self.rows = shard.rows
        self.weight = shard.weight
        self.loss_weight = loss_weight or shard.weight
        self.relative_weight = shard.weight / self.loss_weight

    def size(self, v: Tensor) -> int:  # noqa: ARG002 - v holds the rows of this process only
        """Return the number of examples of the whole minibatch."""
        return self.shard.n

    def mean(self, x: Tensor) -> Tensor:
        r"""Compute the mean over all examples, given the mean x over this process' examples.

        The mean is :math:`\sum_r \tfrac{n_r}{n} x_r`, where x_r is the mean over the n_r examples of process r.

        The result is differentiable to any order and inside ``torch.func``. If a loss is the weighted mean of the
        losses J_r of the processes, process r differentiates only J_r. The mean of these gradients is the gradient of
        the loss, provided that all quantities that the processes share were computed by this function.
        """
        return weighted_means([x], self.weight)[0]

    def mean_of(self, tensors: dict[Any, Tensor]) -> dict[Any, Tensor]:
        """Compute the :meth:`mean` of several tensors in one all-reduce."""
        if not tensors:
            return tensors
        return dict(zip(tensors, weighted_means([*tensors.values()], self.weight), strict=True))

    def gather(self, x: Tensor) -> Tensor:
        """Gather the rows of all processes into one tensor, shape (n, ...), in the order of the minibatch."""
        return gather_shards(x, self.shard.rows, self.shard.n, self.loss_weight)

    def draw(self, draw: Callable[[Tensor, torch.Generator], Any], v: Tensor, generator: torch.Generator) -> Any:
        """Draw the noise of the whole minibatch, and return the noise of this process' examples."""

        def draw_rows(n: int, generator: torch.Generator = generator) -> Any:
            return draw(v.new_empty(n, *v.shape[1:]), generator)

        axes = row_axes(lambda n: draw_rows(n, torch.Generator(v.device)))
        return take_rows(draw_rows(self.shard.n), axes, self.shard)

    def rows_of(self, tensors: Any, axes: Any = 0) -> Any:
        """Select this process' examples from tensors that contain all examples of the minibatch.

        Args:
            tensors: Tensors in nested containers.
            axes: The axis of the examples in each tensor, as :func:`row_axes` returns them, or one axis for all.
        """
        axes = tree_map(lambda _: axes, tensors) if isinstance(axes, int) else axes
        return take_rows(tensors, axes, self.shard)

    def of(self, n: int, device: torch.device) -> Minibatch:
        """Return a minibatch for another set of n examples, divided among the same processes.

        The caller must have checked n with :func:`check_shared`.
        """
        return ShardedMinibatch(cast(Shard, shard_of(n, device)), self.weight)


def minibatch_of(v: Tensor, n: int) -> Minibatch:
    """Return a minibatch of n examples, of which this process has the examples v: a shard or, if n is small, all n.

    Example:
        >>> minibatch_of(torch.zeros(5, 2), 5) is WHOLE
        True
    """
    shard = shard_of(n, v.device)
    if shard is None:
        return WHOLE
    return ShardedMinibatch(shard)


def row_axes(draw: Callable[[int], Any]) -> Any:
    """Find the batch dimension of each noise tensor, that is, the axis whose size depends on the number of examples.

    Noise is drawn for two and for three examples and the shapes are compared, so that methods need not declare axes.

    Args:
        draw: A function that maps a number of examples to noise, which consists of tensors in nested containers.

    Returns:
        The axes in the same containers; -1 for a tensor without such an axis.

    Example:
        >>> row_axes(lambda n: {"eps": torch.zeros(5, n, 3), "bits": [torch.zeros(2 * n)], "chains": torch.zeros(7)})
        {'eps': 1, 'bits': [0], 'chains': -1}
    """

    def axis(two: Tensor, three: Tensor) -> int:
        found = [i for i, (a, b) in enumerate(zip(two.shape, three.shape, strict=True)) if a != b]
        return found[0] if found else -1

    return tree_map(axis, draw(2), draw(3))


def take_rows(noise: Any, axes: Any, shard: Shard) -> Any:
    """Select the noise of a shard's examples from noise drawn for all examples.

    Args:
        noise: Noise for :attr:`Shard.n` examples; an axis of k n entries consists of k blocks of n examples.
        axes: The axes of the examples, as :func:`row_axes` returns them.
        shard: The examples to select.

    Example:
        >>> shard = Shard(torch.tensor([0, 2]), 3)
        >>> take_rows({"twice": torch.arange(6)}, {"twice": 0}, shard)
        {'twice': tensor([0, 2, 3, 5])}
    """

    def rows(x: Tensor, axis: int) -> Tensor:
        if axis < 0:
            return x
        apart = x.unflatten(axis, (-1, shard.n))
        return apart.index_select(axis + 1, shard.rows).flatten(axis, axis + 1)

    return tree_map(rows, noise, axes)
