"""Density and coverage of samples: precision and recall that outliers among the samples do not mislead."""

from __future__ import annotations

from pydantic import PositiveInt

from eblvm_lit.evaluation.criteria.neighbours import NeighbourCriterion, counts, squared_radii
from eblvm_lit.evaluation.features.base import Titles
from eblvm_lit.evaluation.features.sets import FeatureSet
from eblvm_lit.utils.quantities import Quantity

__all__ = ["DensityCoverage"]


class DensityCoverage(
    NeighbourCriterion,
    emits={"density{suffix}": Quantity(1), "coverage{suffix}": Quantity(1)},
):
    r"""``density``: in how many balls of the data a sample is; ``coverage``: which balls hold a sample.

    .. math:: \text{density} = \frac1{kM} \sum_{i,j} 1\bigl[|x_i - y_j| \le r_k(y_j)\bigr], \qquad
        \text{coverage} = \frac1N \sum_j 1\bigl[\exists i: |x_i - y_j| \le r_k(y_j)\bigr]

    x are features of M samples, y of N examples, and r_k is the distance of an example to its k-th nearest other one.
    Where both sets are of one distribution, density is 1 in expectation, and coverage
    :math:`1 - \prod_{i=1}^k (N - i) / (M + N - i)`. Density may exceed 1, where samples crowd. Reference: Naeem et al.
    2020, arXiv 2002.09797.

    Args:
        k: The neighbour that a ball reaches to.
        n_max: Largest number of examples, the first ones; None for all.

    Example:
        >>> import torch
        >>> from eblvm_lit.evaluation.frechet import Gaussian
        >>> none, titles = Gaussian(torch.zeros(1), torch.zeros(1, 1)), Titles("fid", "kid", "inception_score")
        >>> data = FeatureSet(4, none, torch.tensor([[0.0], [1.0], [5.0], [6.0]]))
        >>> samples = FeatureSet(2, none, torch.tensor([[0.5], [0.75]]))  # in two balls each, of four
        >>> DensityCoverage(k=1).compute(samples, data, titles)
        {'density': 2.0, 'coverage': 0.5}
    """

    def __init__(self, *, k: PositiveInt = 5, n_max: PositiveInt | None = None) -> None:
        super().__init__(k=k, n_max=n_max)

    def compute(self, samples: FeatureSet, reference: FeatureSet, titles: Titles) -> dict[str, float]:
        """Both; see :meth:`SampleCriterion.compute`."""
        x, y = self.rows(samples, reference)
        balls, held = counts(x, y, squared_radii(y, self.k))
        density = float(balls.double().mean()) / self.k
        coverage = float((held > 0).double().mean())
        return {titles.of("density"): density, titles.of("coverage"): coverage}
