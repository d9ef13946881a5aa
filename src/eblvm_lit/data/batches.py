"""Iterators over the minibatches of an array: shuffled without end, in lists, a few repeatedly, or once in order."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import torch

from eblvm_lit.core.ranks import rank_and_size
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.core.shards import Shard, shard_of

__all__ = ["BatchStream", "Blocks", "OrderedBatches", "RepeatedBatches"]


class BatchStream:
    """An endless stream of shuffled minibatches whose order depends only on the seed and the epoch.

    An epoch has ⌈n/B⌉ batches; the last one is short if B does not divide n. Batch t is

        e, i = divmod(t, ⌈n/B⌉)
        batch_t = array[π_e[iB : (i+1)B]],   π_e = randperm(n) keyed by (seed, "order", e)

    so that a stream that starts at ``position = t`` continues an interrupted stream exactly, without drawing the
    earlier batches again. The class has no ``state_dict`` on purpose: Lightning would save and restore it, but as
    Lightning prefetches one batch, a resumed run would skip a batch. With several processes, each process reads only
    its own examples of a minibatch: see :func:`eblvm_lit.core.shards.shard_of`.

    Args:
        array: The data, shape (n, *event_shape), n >= 1.
        batch_size: The number B of examples in a batch, B >= 1.
        seed: Seed of the order.
        position: Iteration t of the next batch.
        augment: A function of (batch, t, shard) that augments batch t, possibly in place. It must not depend on earlier
            calls, so that a resumed run uses the same batches.

    Attributes:
        position: The iteration of the next batch; set it only before iterating.

    Example:
        >>> stream = BatchStream(torch.arange(5), batch_size=2, seed=3)
        >>> batches = iter(stream)
        >>> epoch = [next(batches) for _ in range(3)]
        >>> [len(batch) for batch in epoch], sorted(torch.cat(epoch).tolist()), stream.position
        ([2, 2, 1], [0, 1, 2, 3, 4], 3)
        >>> resumed = BatchStream(torch.arange(5), batch_size=2, seed=3, position=2)
        >>> bool((next(iter(resumed)) == epoch[2]).all()), bool((stream.rows(2) == epoch[2]).all())
        (True, True)
    """

    def __init__(
        self,
        array: torch.Tensor,
        *,
        batch_size: int,
        seed: int = 0,
        position: int = 0,
        augment: Callable[[torch.Tensor, int, Shard | None], torch.Tensor] | None = None,
    ) -> None:
        self.array = array
        self.batch_size = batch_size
        self.seed = seed
        self.position = position
        self.augment = augment
        self._last: tuple[int, torch.Tensor] | None = None  # the epoch of the last call, and the order of its examples

    def rows(self, position: int) -> torch.Tensor:
        """Return the indices of all examples in the batch of an iteration, also of those that other processes read."""
        epoch, i = divmod(position, -(-len(self.array) // self.batch_size))
        if self._last is None or self._last[0] != epoch:
            order = torch.randperm(len(self.array), generator=keyed_generator(self.seed, "order", epoch))
            self._last = epoch, order
        return self._last[1][i * self.batch_size : (i + 1) * self.batch_size]

    def __iter__(self) -> Iterator[torch.Tensor]:
        for position in itertools.count(self.position):
            rows = self.rows(position)
            shard = shard_of(len(rows))
            batch = self.array.index_select(0, rows if shard is None else rows[shard.rows])
            if self.augment is not None:
                batch = self.augment(batch, position, shard)
            self.position = position + 1
            yield batch


class Blocks:
    """An iterator over lists of minibatches; one training step of Lightning processes one list.

    A list ends whenever the iteration is a multiple of ``size``: the first list of a resumed run may be shorter.

    Args:
        stream: The stream of minibatches.
        size: Number of minibatches in a list.

    Example:
        >>> stream = BatchStream(torch.arange(6), batch_size=2, position=2)
        >>> blocks = iter(Blocks(stream, size=4))
        >>> [len(next(blocks)) for _ in range(3)]
        [2, 4, 4]
    """

    def __init__(self, stream: BatchStream, *, size: int) -> None:
        self.stream = stream
        self.size = size

    def __iter__(self) -> Iterator[list[torch.Tensor]]:
        batches = iter(self.stream)
        while True:
            yield [next(batches) for _ in range(self.size - self.stream.position % self.size)]


class RepeatedBatches:
    """An iterator that repeats the same n minibatches in order: iteration t uses batch t mod n.

    One pass yields n batches. It starts with the batch of the current iteration, which after resuming a run need not be
    the first of the n batches. With several processes, each process reads only its own examples, as in
    :class:`BatchStream`.

    Args:
        array: The data, shape (n_rows, *event_shape).
        batch_size: Number of examples in a batch; the last batch may be shorter.
        position: A function that is called at the start of a pass and returns the iteration of its first batch.

    Example:
        >>> batches = RepeatedBatches(torch.arange(5), batch_size=2, position=lambda: 7)
        >>> [batch.tolist() for batch in batches], batches.rows(7).tolist()
        ([[2, 3], [4], [0, 1]], [2, 3])
    """

    def __init__(self, array: torch.Tensor, *, batch_size: int, position: Callable[[], int]) -> None:
        self.array = array
        self.batch_size = batch_size
        self.position = position

    def __len__(self) -> int:
        return -(-len(self.array) // self.batch_size)

    def rows(self, position: int) -> torch.Tensor:
        """Return the indices of the examples in the batch of an iteration.

        ``position`` is the iteration, which is counted from the start of the run and not from the start of a pass.
        """
        start = position % len(self) * self.batch_size
        return torch.arange(start, min(start + self.batch_size, len(self.array)))

    def __iter__(self) -> Iterator[torch.Tensor]:
        first = self.position()
        for position in range(first, first + len(self)):
            rows = self.rows(position)
            shard = shard_of(len(rows))
            # Indexing by a tensor makes a copy, so in-place changes of a batch do not change the data set.
            yield self.array[rows if shard is None else rows[shard.rows]]


class OrderedBatches:
    """An iterator over the batches of an array that visits each example once, in order.

    Args:
        array: The data, shape (n, *event_shape).
        batch_size: Number of examples in a batch; the last batch may be shorter.
        distributed: Whether process r of R gets only the batches r, r + R, r + 2R, ... All processes get the same
            number of batches; the last batch of a process may be empty.

    Example:
        >>> batches = OrderedBatches(torch.arange(5), batch_size=2)
        >>> len(batches), [batch.tolist() for batch in batches]
        (3, [[0, 1], [2, 3], [4]])
    """

    def __init__(self, array: torch.Tensor, *, batch_size: int, distributed: bool = False) -> None:
        self.array = array
        self.batch_size = batch_size
        self.rank, self.size = rank_and_size() if distributed else (0, 1)

    def __len__(self) -> int:
        return -(-len(self.array) // (self.batch_size * self.size))

    def __iter__(self) -> Iterator[torch.Tensor]:
        for first in range(0, len(self) * self.size, self.size):
            start = (first + self.rank) * self.batch_size
            # Copy, so that in-place changes of a batch do not change the data set.
            yield self.array[start : start + self.batch_size].clone()
