"""The maximum mean discrepancy between the features of samples and the features of data, with a Gaussian kernel."""

from __future__ import annotations

import logging
from typing import Literal

from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from eblvm_lit.core.tensors import median_distance
from eblvm_lit.evaluation.criteria.base import RowCriterion
from eblvm_lit.evaluation.criteria.neighbours import squared_distances
from eblvm_lit.evaluation.features.base import Titles
from eblvm_lit.evaluation.features.sets import FeatureSet
from eblvm_lit.utils.quantities import Quantity

__all__ = ["MeanDiscrepancy"]

log = logging.getLogger(__name__)

N_FOR_MEDIAN = 2000  # number of examples whose median distance is the default bandwidth


class MeanDiscrepancy(
    RowCriterion,
    emits={
        "mmd{suffix}": Quantity(
            -1, "", "the squared maximum mean discrepancy with a Gaussian kernel; it may be negative"
        )
    },
):
    r"""An unbiased estimate ``mmd`` of the squared maximum mean discrepancy, from M samples and N examples.

    .. math:: \frac{\sum_{i \ne j} k(x_i, x_j)}{M (M - 1)} + \frac{\sum_{i \ne j} k(y_i, y_j)}{N (N - 1)}
        - \frac{2 \sum_{i, j} k(x_i, y_j)}{M N}, \qquad k(x, y) = e^{-|x - y|^2 / (2 b^2)}

    If samples and examples have the same distribution, its expectation is zero; a single value may be negative. The
    bandwidth b depends only on the data, and so is the same for all models. Reference: Gretton et al. 2012, "A kernel
    two-sample test".

    Args:
        bandwidth: The bandwidth b, in the units of the features; ``median`` is the median distance between the first
            2,000 examples.
        n_max: Largest number of examples; the first ones are used. None uses all.

    Example:
        >>> import torch
        >>> from eblvm_lit.evaluation.frechet import Gaussian
        >>> none, titles = Gaussian(torch.zeros(1), torch.zeros(1, 1)), Titles("fid", "kid", "inception_score")
        >>> x, y = (FeatureSet(2, none, rows) for rows in (torch.zeros(2, 1), torch.full((2, 1), 100.0)))
        >>> MeanDiscrepancy(bandwidth=1.0).compute(x, y, titles)  # 1 + 1 - 0
        {'mmd': 2.0}
    """

    def __init__(
        self, *, bandwidth: PositiveFloat | Literal["median"] = "median", n_max: PositiveInt | None = None
    ) -> None:
        super().__init__(n_max=n_max)
        self.bandwidth: float | Literal["median"] = bandwidth

    def compute(self, samples: FeatureSet, reference: FeatureSet, titles: Titles) -> dict[str, float]:
        """Compute the discrepancy; see :meth:`SampleCriterion.compute`."""
        x, y = self.rows(samples, reference)
        b = float(median_distance(y[:N_FOR_MEDIAN])) if self.bandwidth == "median" else self.bandwidth
        if b == 0:
            log.warning("mmd is left out: more than half of the examples are equal. Set its bandwidth to a number.")
            return {}
        within = sum((_total(z, z, b) - len(z)) / (len(z) * (len(z) - 1)) for z in (x, y))
        return {titles.of("mmd"): within - 2 * _total(x, y, b) / (len(x) * len(y))}


def _total(x: Tensor, y: Tensor, b: float) -> float:
    """Sum the kernel k(x_i, y_j) over all pairs of a row of x and a row of y, block by block.

    The kernel of two equal vectors is 1.
    """
    return sum(float((-d.clamp(min=0) / (2 * b**2)).exp().sum()) for d in squared_distances(x, y))
