"""Density and coverage of samples: alternatives to precision and recall that are robust to outliers."""

from __future__ import annotations

from pydantic import PositiveInt

from eblvm_lit.evaluation.criteria.neighbours import NeighbourCriterion, counts, squared_radii
from eblvm_lit.evaluation.features.base import Titles
from eblvm_lit.evaluation.features.sets import FeatureSet
from eblvm_lit.utils.quantities import Quantity

__all__ = ["DensityCoverage"]


class DensityCoverage(
    NeighbourCriterion,
    emits={
        "density{suffix}": Quantity(
            1, "", "how many examples a sample is near to, relative to real data, which have 1"
        ),
        "coverage{suffix}": Quantity(1, "", "the share of examples with a sample near them"),
    },
):
    r"""The ``density`` and ``coverage`` of samples, computed from balls around the examples.

    Each ball reaches from an example to its k-th nearest neighbour. Density is the mean number of balls that contain a
    sample, divided by k. Coverage is the share of balls that contain a sample.

    .. math:: \text{density} = \frac1{kM} \sum_{i,j} 1\bigl[|x_i - y_j| \le r_k(y_j)\bigr], \qquad
        \text{coverage} = \frac1N \sum_j 1\bigl[\exists i: |x_i - y_j| \le r_k(y_j)\bigr]

    x are the features of M samples, y those of N examples, and r_k is the distance of an example from its k-th nearest
    other example. If samples and examples have the same distribution, the expected density is 1 and the expected
    coverage :math:`1 - \prod_{i=1}^k (N - i) / (M + N - i)`. Density exceeds 1 if samples concentrate where the data
    are dense. Reference: Naeem et al. 2020, arXiv 2002.09797.

    Args:
        k: Each ball reaches from an example to its k-th nearest neighbour.
        n_max: Largest number of examples; the first ones are used. None uses all.

    Example:
        >>> import torch
        >>> from eblvm_lit.evaluation.frechet import Gaussian
        >>> none, titles = Gaussian(torch.zeros(1), torch.zeros(1, 1)), Titles("fid", "kid", "inception_score")
        >>> data = FeatureSet(4, none, torch.tensor([[0.0], [1.0], [5.0], [6.0]]))
        >>> samples = FeatureSet(2, none, torch.tensor([[0.5], [0.75]]))  # each is in two of the four balls
        >>> DensityCoverage(k=1).compute(samples, data, titles)
        {'density': 2.0, 'coverage': 0.5}
    """

    def __init__(self, *, k: PositiveInt = 5, n_max: PositiveInt | None = None) -> None:
        super().__init__(k=k, n_max=n_max)

    def compute(self, samples: FeatureSet, reference: FeatureSet, titles: Titles) -> dict[str, float]:
        """Compute density and coverage; see :meth:`SampleCriterion.compute`."""
        x, y = self.rows(samples, reference)
        balls, held = counts(x, y, squared_radii(y, self.k))
        density = float(balls.double().mean()) / self.k
        coverage = float((held > 0).double().mean())
        return {titles.of("density"): density, titles.of("coverage"): coverage}
