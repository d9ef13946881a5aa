"""Means and covariances of features, and the Fréchet distance between two normal distributions."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from eblvm_lit.core.ranks import sum_over_ranks

__all__ = ["Gaussian", "Moments", "frechet_distance"]


class Gaussian(NamedTuple):
    """A normal distribution, given by its mean (D,) and covariance (D, D), in float64."""

    mean: Tensor
    covariance: Tensor


class Moments:
    r"""Running sums, in float64, from which the mean and the covariance of feature vectors are computed.

    .. math:: \bar x = \frac1n \sum_i x_i, \qquad
              \frac{1}{n - 1} \Bigl(\sum_i x_i x_i^\top - n\, \bar x \bar x^\top\Bigr)

    Args:
        dim: The number D of features in a vector.

    Example:
        >>> moments = Moments(1)
        >>> for row in torch.tensor([[[1.0]], [[2.0]], [[6.0]]]):
        ...     moments.update(row)
        >>> mean, covariance = moments.gaussian()
        >>> mean.item(), covariance.item()
        (3.0, 7.0)
    """

    def __init__(self, dim: int) -> None:
        self.n = torch.zeros((), dtype=torch.float64)
        self.total = torch.zeros(dim, dtype=torch.float64)
        self.outer = torch.zeros(dim, dim, dtype=torch.float64)

    def update(self, rows: Tensor) -> None:
        """Add B feature vectors, shape (B, D), to the sums."""
        # Sum on the device of the features, except on MPS, which does not support float64.
        rows = rows.cpu().double() if rows.device.type == "mps" else rows.double()
        self.n, self.total, self.outer = (x.to(rows.device) for x in (self.n, self.total, self.outer))
        self.n += len(rows)
        self.total += rows.sum(0)
        self.outer.addmm_(rows.T, rows)

    def gaussian(self) -> Gaussian:
        """Compute the mean and the unbiased covariance of the vectors of all processes, on the CPU."""
        n, total, outer = (sum_over_ranks(x).cpu() for x in (self.n, self.total, self.outer))
        mean = total / n
        return Gaussian(mean, (outer - n * torch.outer(mean, mean)) / (n - 1))


def frechet_distance(p: Gaussian, q: Gaussian) -> float:
    r"""Compute the squared 2-Wasserstein distance between two normal distributions, in float64.

    .. math:: \|m_p - m_q\|^2 + \mathrm{tr}\,C_p + \mathrm{tr}\,C_q - 2\,\|C_p^{1/2} C_q^{1/2}\|_*

    The nuclear norm equals :math:`\mathrm{tr}\,(C_p C_q)^{1/2}`. Computed as a sum of singular values, it needs no
    square roots of eigenvalues that are zero up to rounding; covariances of few examples have many of these. In such
    a case torchmetrics is wrong by 1.5e-5: its distance between 1,000 validation images and themselves, with Inception
    features, is -1.2e-5. Reference: Dowson and Landau 1982; Heusel et al. 2017.

    Args:
        p: One distribution.
        q: The other distribution.

    Returns:
        The distance, at least 0.

    Example:
        >>> p = Gaussian(torch.zeros(2).double(), torch.eye(2).double())
        >>> round(frechet_distance(p, Gaussian(p.mean + 3, 4 * p.covariance)), 9)  # 2 * 3^2 + 2 * (2 - 1)^2
        20.0
    """
    overlap = torch.linalg.svdvals(_root(p.covariance) @ _root(q.covariance)).sum()
    distance = (p.mean - q.mean).square().sum() + p.covariance.trace() + q.covariance.trace() - 2 * overlap
    return max(float(distance), 0.0)


def _root(covariance: Tensor) -> Tensor:
    """Compute the symmetric square root of a covariance matrix; eigenvalues near zero are set to zero."""
    values, vectors = torch.linalg.eigh(covariance)
    smallest = values[-1].clamp(min=0) * len(values) * torch.finfo(values.dtype).eps
    return (vectors * values.where(values > smallest, 0).sqrt()) @ vectors.T
