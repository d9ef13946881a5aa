"""The minibatch of one iteration, with means over all of its examples even if several processes share them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["WHOLE", "Minibatch"]


class Minibatch:
    """A minibatch whose examples are all in this process.

    Code that couples the examples of a minibatch (by a mean, or by all pairs) calls these methods, and need not know
    about processes. If several processes share the examples, the subclass ``ShardedMinibatch`` exchanges tensors
    between them.

    Attributes:
        rows: The indices of this process' examples in the whole minibatch, int64; None if this process has all
            examples.
        weight: The fraction of the examples that are in this process.
        relative_weight: A correction factor for means over this process' examples in its loss. The factor differs from
            1 only for another set of examples, such as persistent chains, of which this process may have another
            fraction; see :meth:`of`.

    Example:
        >>> minibatch = Minibatch()
        >>> minibatch.mean(torch.ones(2)), minibatch.gather(torch.arange(3))
        (tensor([1., 1.]), tensor([0, 1, 2]))
    """

    rows: Tensor | None = None
    weight: float = 1.0
    relative_weight: float = 1.0

    def size(self, v: Tensor) -> int:
        """Return the number of examples of the whole minibatch, given this process' examples v (B, ...)."""
        return len(v)

    def mean(self, x: Tensor) -> Tensor:
        """Compute the mean over all examples, given the mean x over this process' examples.

        The result is differentiable to any order.
        """
        return x

    def mean_of(self, tensors: dict[Any, Tensor]) -> dict[Any, Tensor]:
        """Compute the :meth:`mean` of several tensors in one all-reduce."""
        return tensors

    def gather(self, x: Tensor) -> Tensor:
        """Gather the rows x (B, ...) of all processes into one differentiable tensor (n, ...), in minibatch order."""
        return x

    def draw(self, draw: Callable[[Tensor, torch.Generator], Any], v: Tensor, generator: torch.Generator) -> Any:
        """Draw noise for all examples with ``draw(v, generator)``; return the noise of this process' examples v.

        v has shape (B, *event). Every process draws the noise of the whole minibatch from the same generator and keeps
        the noise of its own examples. Several processes therefore use the same random numbers as one process would.
        """
        return draw(v, generator)

    def rows_of(self, tensors: Any, axes: Any = 0) -> Any:  # noqa: ARG002 - ShardedMinibatch uses them
        """Select this process' examples from tensors that contain all examples of the minibatch.

        Args:
            tensors: Tensors in nested containers.
            axes: The axis of the examples in each tensor, in the same containers, or one axis for all tensors.
        """
        return tensors

    def of(self, n: int, device: torch.device) -> Minibatch:  # noqa: ARG002 - ShardedMinibatch uses them
        """Return a minibatch for another set of n examples that the processes share, such as persistent chains."""
        return self


WHOLE = Minibatch()
