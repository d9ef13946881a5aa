"""Balls around features that reach to their k-th nearest neighbours, and which of them hold other features."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from pydantic import PositiveInt
from torch import Tensor

from eblvm_lit.evaluation.criteria.base import RowCriterion

__all__ = ["NeighbourCriterion", "counts", "squared_radii"]

ELEMENTS = 2**20  # distances at a time: 8 MiB, four times as fast as 128
ROUNDING = 1e-12  # of a squared distance, relative to the squared norms: equal features are in each other's balls


class NeighbourCriterion(RowCriterion):
    """Numbers that compare two sets of features by balls around one of them.

    Args:
        k: The neighbour that a ball reaches to.
        n_max: Largest number of examples; None for all.
    """

    def __init__(self, *, k: PositiveInt, n_max: PositiveInt | None = None) -> None:
        super().__init__(n_max=n_max)
        self.k = k
        self.fewest = k + 1


def _blocks(x: Tensor, y: Tensor, *, allowance: float) -> Iterator[Tensor]:
    """Squared distances of some rows of x to all of y, less an allowance relative to the norms, shape (B, m)."""
    of_y = y.square().sum(-1)
    size = max(1, ELEMENTS // len(y))
    for first in range(0, len(x), size):
        rows = x[first : first + size]
        norms = rows.square().sum(-1, keepdim=True) + of_y
        yield ((1 - allowance) * norms).addmm(rows, y.T, alpha=-2)


def squared_radii(x: Tensor, k: int) -> Tensor:
    """The squared distance of each row to its k-th nearest other row, shape (n,).

    Args:
        x: Features, shape (n, D), float64, n > k.
        k: Which neighbour.

    Example:
        >>> squared_radii(torch.tensor([[0.0], [1.0], [3.0]]).double(), 1).round(decimals=9)
        tensor([1., 1., 4.], dtype=torch.float64)
    """
    # the nearest one is itself; topk takes half the time of kthvalue
    nearest = (d.topk(k + 1, largest=False).values[:, -1].clone() for d in _blocks(x, x, allowance=0))
    return torch.cat(list(nearest)).clamp(min=0)


def counts(x: Tensor, y: Tensor, squared: Tensor) -> tuple[Tensor, Tensor]:
    """In how many balls around y each x is, and how many x each ball holds.

    Args:
        x: Features, shape (n, D), float64.
        y: Centres, shape (m, D).
        squared: Squared radii, shape (m,).

    Returns:
        Shapes (n,) and (m,), int64.

    Example:
        >>> x, y = torch.tensor([[0.5], [2.0]]).double(), torch.tensor([[0.0], [1.0]]).double()
        >>> counts(x, y, torch.ones(2).double())
        (tensor([2, 1]), tensor([1, 2]))
    """
    of_x = []
    of_y = torch.zeros(len(y), dtype=torch.int64, device=y.device)
    for d in _blocks(x, y, allowance=ROUNDING):
        inside = d <= squared
        of_x.append(inside.sum(1))
        of_y += inside.sum(0)
    return torch.cat(of_x), of_y
