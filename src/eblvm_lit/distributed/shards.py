"""What of a minibatch each of several processes has: its rows, and its rows of the noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from eblvm_lit.distributed.ranks import rank_and_size
from eblvm_lit.errors import ConfigError

__all__ = ["Shard", "checked_shard", "current_shard", "row_axes", "shard_of", "sharing", "take_rows"]

# A plain variable: on a GPU autograd's own thread, which has no context of ours, must see it, too.
_current: Shard | None = None


class Shard(NamedTuple):
    """Some rows of a whole that processes share.

    Attributes:
        rows: Their numbers in the whole, int64.
        n: Rows of the whole.
    """

    rows: Tensor
    n: int

    @property
    def weight(self) -> float:
        """What a mean over these rows counts in the mean over all."""
        return len(self.rows) / self.n


@lru_cache(maxsize=64)
def _share(n: int, rank: int, size: int, device: torch.device) -> Shard:
    half = n // 2
    rows = torch.arange(half * rank // size, half * (rank + 1) // size, device=device)
    odd = [torch.tensor([n - 1], device=device)] if n % 2 and rank == size - 1 else []
    return Shard(torch.cat([rows, rows + half, *odd]), n)


def shard_of(n: int, device: torch.device | str = "cpu", *, what: str = "examples of a minibatch") -> Shard | None:
    r"""This process' share of n rows; None where there is one process, which has them all.

    Process r of R has the rows from :math:`\lfloor hr/R \rfloor` on of both halves of h = n // 2 rows (and the last
    one that of an odd n): every row is somebody's and nobody's twice, and what is paired across the halves, as in the
    kernelized Stein discrepancy, stays together.

    Args:
        n: Rows of the whole.
        device: Where the row numbers are needed.
        what: The rows' name, for the error.

    Raises:
        ConfigError: For fewer than two rows a process.

    Example:
        >>> shard_of(100) is None
        True
        >>> [_share(9, rank, 2, torch.device("cpu")).rows.tolist() for rank in (0, 1)]
        [[0, 1, 4, 5], [2, 3, 6, 7, 8]]
    """
    rank, size = rank_and_size()
    if size == 1:
        return None
    if n < 2 * size:
        raise ConfigError(
            f"{n} {what} are too few for {size} devices, each of which needs two: lower trainer.devices, or choose "
            "another data.batch_size."
        )
    return _share(n, rank, size, torch.device(device))


def checked_shard(v: Tensor, n: int) -> Shard | None:
    """The share that v is of a minibatch of n rows; None with one process.

    Raises:
        ConfigError: If it cannot be: Lightning's options that end epochs early move the minibatches.

    Example:
        >>> checked_shard(torch.zeros(5, 2), 5) is None
        True
    """
    share = shard_of(n, v.device)
    if share is not None and len(share.rows) != len(v):
        raise ConfigError(
            "These are not the minibatches that several devices should share: leave out trainer.limit_train_batches "
            "and trainer.overfit_batches, or use trainer.devices=1."
        )
    return share


@contextmanager
def sharing(share: Shard | None) -> Iterator[None]:
    """Inside, means over a minibatch are over those of all processes: see :mod:`eblvm_lit.distributed.reductions`."""
    global _current
    before, _current = _current, share
    try:
        yield
    finally:
        _current = before


def current_shard() -> Shard | None:
    """The share of the minibatch in hand; None outside of :func:`sharing`, and with one process."""
    return _current


def row_axes(draw: Callable[[int], Any]) -> Any:
    """Where the rows are in each tensor of some noise: the axis that grows with their number.

    Found by drawing for two rows and for three, so that whoever draws noise needs to know nothing of processes.

    Args:
        draw: Maps a number of rows to noise: tensors in nested containers.

    Returns:
        The same containers of axes, -1 for what does not grow.

    Raises:
        NotImplementedError: For a tensor that grows along several axes.

    Example:
        >>> row_axes(lambda n: {"eps": torch.zeros(5, n, 3), "bits": [torch.zeros(2 * n)], "chains": torch.zeros(7)})
        {'eps': 1, 'bits': [0], 'chains': -1}
    """

    def axis(two: Any, three: Any) -> int:
        if not isinstance(two, Tensor):
            return -1
        found = [i for i, (a, b) in enumerate(zip(two.shape, three.shape, strict=True)) if a != b]
        if len(found) > 1:
            raise NotImplementedError(f"noise of shape {tuple(three.shape)} for 3 rows grows along several axes")
        return found[0] if found else -1

    return pytree.tree_map(axis, draw(2), draw(3))


def take_rows(noise: Any, axes: Any, share: Shard) -> Any:
    """The share of noise that was drawn for all rows.

    Args:
        noise: Of :attr:`Shard.n` rows, or several times as many along an axis, the rows running fastest.
        axes: As :func:`row_axes` gives.
        share: Which rows.

    Example:
        >>> share = Shard(torch.tensor([0, 2]), 3)
        >>> take_rows({"twice": torch.arange(6)}, {"twice": 0}, share)
        {'twice': tensor([0, 2, 3, 5])}
    """

    def rows(x: Any, axis: int) -> Any:
        if axis < 0:
            return x
        apart = x.unflatten(axis, (-1, share.n))
        return apart.index_select(axis + 1, share.rows).flatten(axis, axis + 1)

    return pytree.tree_map(rows, noise, axes)
