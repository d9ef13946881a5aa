"""How a whole array is handed out in batches: shuffled without end, one by one or in blocks, or once in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.distributed.ranks import rank_and_size
from eblvm_lit.distributed.shards import Shard, shard_of

__all__ = ["BatchStream", "Blocks", "OrderedBatches"]


class BatchStream:
    """An endless stream of shuffled minibatches whose order is a function of (seed, epoch) alone.

    Batch t, with ⌈n/B⌉ batches an epoch (the last one short where B does not divide n), is

        e, i = divmod(t, ⌈n/B⌉)
        batch_t = array[π_e[iB : (i+1)B]],   π_e = randperm(n) keyed by (seed, "order", e)

    so a stream that starts at ``position = t`` goes on as an uninterrupted one would, with nothing to replay.
    It has no ``state_dict`` on purpose: Lightning would save and load it by itself, and as it fetches one
    batch ahead of training, a resumed run would leave one batch out. Where processes share the minibatches each gets
    its own rows of them, and no others: see :func:`eblvm_lit.distributed.shards.shard_of`.

    Args:
        array: The data, shape (n, *event_shape), n >= 1.
        batch_size: Rows of a batch, B >= 1.
        seed: Seed of the order.
        position: Iteration index of the next batch to hand out.
        augment: What to do to batch t, a function of (batch, t, share of it), so that it too goes on as if
            uninterrupted; it may change the batch in place.

    Attributes:
        position: As above; set it before iterating, read it at any time.

    Example:
        >>> stream = BatchStream(torch.arange(5), batch_size=2, seed=3)
        >>> batches = iter(stream)
        >>> epoch = [next(batches) for _ in range(3)]
        >>> [len(batch) for batch in epoch], sorted(torch.cat(epoch).tolist()), stream.position
        ([2, 2, 1], [0, 1, 2, 3, 4], 3)
        >>> resumed = BatchStream(torch.arange(5), batch_size=2, seed=3, position=2)
        >>> bool((next(iter(resumed)) == epoch[2]).all())
        True
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

    @property
    def batches_per_epoch(self) -> int:
        """⌈n/B⌉."""
        return -(-len(self.array) // self.batch_size)

    def order(self, epoch: int) -> torch.Tensor:
        """π_e: the row indices in the order of one epoch, shape (n,)."""
        return torch.randperm(len(self.array), generator=keyed_generator(self.seed, "order", epoch))

    def __iter__(self) -> Iterator[torch.Tensor]:
        position = self.position
        while True:
            epoch, done = divmod(position, self.batches_per_epoch)
            for rows in self.order(epoch).split(self.batch_size)[done:]:
                share = shard_of(len(rows))
                batch = self.array.index_select(0, rows if share is None else rows[share.rows])
                if self.augment is not None:
                    batch = self.augment(batch, position, share)
                position += 1
                self.position = position
                yield batch


class Blocks:
    """The minibatches of a stream in lists: what one call of a trainer's loop is given.

    A list ends where the iteration is a multiple of ``size``, wherever the stream begins.

    Args:
        stream: The minibatches.
        size: Minibatches in a whole block.

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
        n = self.size - self.stream.position % self.size
        batches = iter(self.stream)
        while True:
            yield [next(batches) for _ in range(n)]
            n = self.size


class OrderedBatches:
    """An array once through, in order, as often as it is iterated over.

    Args:
        array: The data, shape (n, *event_shape).
        batch_size: Rows of a batch; the last one may be short.
        dealt: Whether processes get a batch in turn, r, r + R, r + 2R, ... for process r of R. All get as many: the
            last one of some is of no row.

    Example:
        >>> batches = OrderedBatches(torch.arange(5), batch_size=2)
        >>> len(batches), [batch.tolist() for batch in batches]
        (3, [[0, 1], [2, 3], [4]])
    """

    def __init__(self, array: torch.Tensor, *, batch_size: int, dealt: bool = False) -> None:
        self.array = array
        self.batch_size = batch_size
        self.rank, self.size = rank_and_size() if dealt else (0, 1)

    def __len__(self) -> int:
        return -(-len(self.array) // (self.batch_size * self.size))

    def __iter__(self) -> Iterator[torch.Tensor]:
        for first in range(0, len(self) * self.size, self.size):
            start = (first + self.rank) * self.batch_size
            # Copies: whoever changes a batch in place does not change the data set.
            yield self.array[start : start + self.batch_size].clone()
