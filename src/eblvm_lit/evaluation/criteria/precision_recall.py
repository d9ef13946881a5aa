"""Precision and recall of samples: which are like data, and which data are like samples."""

from __future__ import annotations

from pydantic import PositiveInt

from eblvm_lit.evaluation.criteria.neighbours import NeighbourCriterion, counts, squared_radii
from eblvm_lit.evaluation.features.base import Titles
from eblvm_lit.evaluation.features.sets import FeatureSet
from eblvm_lit.utils.quantities import Quantity

__all__ = ["PrecisionRecall"]


class PrecisionRecall(
    NeighbourCriterion,
    emits={"precision{suffix}": Quantity(1), "recall{suffix}": Quantity(1)},
):
    r"""``precision``: the fraction of samples that are in a ball of the data; ``recall``: of data in a ball of samples.

    .. math:: \text{precision} = \frac1M \sum_i 1\bigl[\exists j: |x_i - y_j| \le r_k(y_j)\bigr], \qquad
        \text{recall} = \frac1N \sum_j 1\bigl[\exists i: |y_j - x_i| \le r_k(x_i)\bigr]

    x are features of samples, y of data, and r_k is the distance to the k-th nearest other feature of the same set.
    Both lie between 0 and 1, and higher is better. Compare only values of equally many samples and examples. Reference:
    Kynkaanniemi et al. 2019, arXiv 1904.06991.

    ``torch_fidelity.metric_prc`` gives the same numbers but for ties, which it rounds: of 800 of scikit-learn's digits
    against 800 others one that is at distance r_k is left out, so that the precision is 0.90125 for 0.9025.

    Args:
        k: The neighbour that a ball reaches to.
        n_max: Largest number of examples, the first ones; None for all.

    Example:
        >>> import torch
        >>> from eblvm_lit.evaluation.frechet import Gaussian
        >>> none, titles = Gaussian(torch.zeros(1), torch.zeros(1, 1)), Titles("fid", "kid", "inception_score")
        >>> data = FeatureSet(4, none, torch.tensor([[0.0], [1.0], [2.0], [9.0]]))
        >>> samples = FeatureSet(4, none, torch.tensor([[0.0], [1.0], [2.0], [40.0]]))
        >>> PrecisionRecall(k=1).compute(samples, data, titles)
        {'precision': 0.75, 'recall': 1.0}
    """

    def __init__(self, *, k: PositiveInt = 3, n_max: PositiveInt | None = None) -> None:
        super().__init__(k=k, n_max=n_max)

    def compute(self, samples: FeatureSet, reference: FeatureSet, titles: Titles) -> dict[str, float]:
        """Both; see :meth:`SampleCriterion.compute`."""
        x, y = self.rows(samples, reference)
        balls = ((x, y), (y, x))  # whether the first are in balls around the second
        found = (counts(inside, around, squared_radii(around, self.k))[0] > 0 for inside, around in balls)
        precision, recall = (float(inside.double().mean()) for inside in found)
        return {titles.of("precision"): precision, titles.of("recall"): recall}
