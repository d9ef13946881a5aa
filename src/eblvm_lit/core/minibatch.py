"""The minibatch of one iteration: means over all of its rows, however many processes hold them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["WHOLE", "Minibatch"]


class Minibatch:
    """A minibatch that this process holds as a whole.

    Whatever couples the rows of a minibatch (a mean, all pairs of rows) asks a minibatch for it, and knows nothing of
    processes. Where several processes share the rows, a subclass, ``ShardedMinibatch``, exchanges what is asked for.

    Attributes:
        rows: The numbers of this process' rows in the whole, int64; None where it holds all of them.
        weight: The fraction of the rows that this process holds.
        relative_weight: The weight of a mean over these rows in this process' loss: another number than one where the
            rows are another set than the minibatch, and this process holds another fraction of them; see :meth:`of`.

    Example:
        >>> minibatch = Minibatch()
        >>> minibatch.mean(torch.ones(2)), minibatch.gather(torch.arange(3))
        (tensor([1., 1.]), tensor([0, 1, 2]))
    """

    rows: Tensor | None = None
    weight: float = 1.0
    relative_weight: float = 1.0

    def size(self, v: Tensor) -> int:
        """The number of rows of the whole minibatch, of which this process holds v (B, ...)."""
        return len(v)

    def mean(self, x: Tensor) -> Tensor:
        """The mean over all rows, given x, the mean over this process' rows; differentiable to any order."""
        return x

    def mean_of(self, tensors: dict[Any, Tensor]) -> dict[Any, Tensor]:
        """:meth:`mean` of several tensors, in one exchange."""
        return tensors

    def gather(self, x: Tensor) -> Tensor:
        """All rows in their order, shape (n, ...), given this process' rows x (B, ...); differentiable."""
        return x

    def draw(self, draw: Callable[[Tensor, torch.Generator], Any], v: Tensor, generator: torch.Generator) -> Any:
        """The noise of this process' rows v (B, *event), as ``draw(v, generator)`` gives it for all rows.

        Every process draws the noise of the whole minibatch from the same generator and keeps its own rows: several
        processes see the random numbers that one would.
        """
        return draw(v, generator)

    def rows_of(self, tensors: Any, axes: Any = 0) -> Any:  # noqa: ARG002 - of processes
        """This process' rows of tensors of all rows; ``axes`` are their row axes, or the one that all of them have."""
        return tensors

    def of(self, n: int, device: torch.device) -> Minibatch:  # noqa: ARG002 - of processes
        """Another set of n rows, shared by the same processes, such as persistent chains."""
        return self


WHOLE = Minibatch()
