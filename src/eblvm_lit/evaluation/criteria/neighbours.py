"""Nearest-neighbour balls around feature vectors, and counts of the vectors inside them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from pydantic import PositiveInt
from torch import Tensor

from eblvm_lit.evaluation.criteria.base import RowCriterion

__all__ = ["NeighbourCriterion", "counts", "squared_distances", "squared_radii"]

ELEMENTS = 2**20  # number of distances per block: blocks of 8 MiB are four times as fast as blocks of 128 MiB
# Squared distances are reduced by this fraction of the squared norms of the vectors. Otherwise rounding errors could
# put a feature vector outside of the ball around an equal vector.
ROUNDING = 1e-12


class NeighbourCriterion(RowCriterion):
    """The base class of criteria that count the features of one set inside balls around the features of another.

    Args:
        k: Each ball reaches from its centre to the k-th nearest neighbour in the same set.
        n_max: Largest number of examples; the first ones are used. None uses all.
    """

    def __init__(self, *, k: PositiveInt, n_max: PositiveInt | None = None) -> None:
        super().__init__(n_max=n_max)
        self.k = k
        self.fewest = k + 1


def squared_distances(x: Tensor, y: Tensor, *, allowance: float = 0.0) -> Iterator[Tensor]:
    """Yield the squared distances between the rows of x and the rows of y, for one block of rows of x at a time.

    The distances have shape (B, m) for B rows of x and all m rows of y. They are reduced by the fraction ``allowance``
    of the squared norms, which allows for rounding errors.
    """
    of_y = y.square().sum(-1)
    for rows in x.split(max(1, ELEMENTS // len(y))):
        yield ((1 - allowance) * (rows.square().sum(-1, keepdim=True) + of_y)).addmm(rows, y.T, alpha=-2)


def squared_radii(x: Tensor, k: int) -> Tensor:
    """Compute the squared distance between each of n feature vectors and its k-th nearest neighbour, shape (n,).

    Args:
        x: Feature vectors, shape (n, D), float64, n > k.
        k: The rank of the neighbour; 1 is the nearest other vector.

    Example:
        >>> squared_radii(torch.tensor([[0.0], [1.0], [3.0]]).double(), 1).round(decimals=9)
        tensor([1., 1., 4.], dtype=torch.float64)
    """
    # k + 1, because the nearest neighbour of each vector is the vector itself; topk is twice as fast as kthvalue
    nearest = (d.topk(k + 1, largest=False).values[:, -1].clone() for d in squared_distances(x, x))
    return torch.cat(list(nearest)).clamp(min=0)


def counts(x: Tensor, y: Tensor, squared: Tensor) -> tuple[Tensor, Tensor]:
    """Count, for each vector of x, the balls that contain it, and for each ball, the vectors of x inside the ball.

    Args:
        x: Feature vectors, shape (n, D), float64.
        y: The balls' centres, shape (m, D), float64.
        squared: The balls' squared radii, shape (m,).

    Returns:
        The number of balls that contain each x, shape (n,), and the number of x in each ball, shape (m,), int64.

    Example:
        >>> x, y = torch.tensor([[0.5], [2.0]]).double(), torch.tensor([[0.0], [1.0]]).double()
        >>> counts(x, y, torch.ones(2).double())
        (tensor([2, 1]), tensor([1, 2]))
    """
    of_x = []
    of_y = torch.zeros(len(y), dtype=torch.int64, device=y.device)
    for d in squared_distances(x, y, allowance=ROUNDING):
        inside = d <= squared
        of_x.append(inside.sum(1))
        of_y += inside.sum(0)
    return torch.cat(of_x), of_y
