"""Precision, the share of samples that look like data, and recall, the share of data that look like samples."""

from __future__ import annotations

from pydantic import PositiveInt

from eblvm_lit.evaluation.criteria.neighbours import NeighbourCriterion, counts, squared_radii
from eblvm_lit.evaluation.features.base import Titles
from eblvm_lit.evaluation.features.sets import FeatureSet
from eblvm_lit.utils.quantities import Quantity

__all__ = ["PrecisionRecall"]


class PrecisionRecall(
    NeighbourCriterion,
    emits={
        "precision{suffix}": Quantity(1, "", "the share of samples that lie near an example: are samples realistic?"),
        "recall{suffix}": Quantity(1, "", "the share of examples that lie near a sample: are all kinds sampled?"),
    },
):
    r"""The ``precision`` and the ``recall`` of samples, computed from balls around feature vectors.

    Precision is the fraction of samples inside a ball around an example, recall the fraction of examples inside a ball
    around a sample.

    .. math:: \text{precision} = \frac1M \sum_i 1\bigl[\exists j: |x_i - y_j| \le r_k(y_j)\bigr], \qquad
        \text{recall} = \frac1N \sum_j 1\bigl[\exists i: |y_j - x_i| \le r_k(x_i)\bigr]

    x are the features of M samples, y those of N examples, and r_k is the distance from the k-th nearest other feature
    of the same set. Both numbers lie between 0 and 1, and higher is better. Compare only values that were computed from
    the same number of samples and examples. Reference: Kynkaanniemi et al. 2019, arXiv 1904.06991.

    ``torch_fidelity.metric_prc`` computes the same numbers, except for ties: it can miss a feature whose distance is
    exactly r_k, because of rounding. With 800 of scikit-learn's digits against 800 others it misses one, and its
    precision is 0.90125 instead of 0.9025.

    Args:
        k: Each ball reaches from its centre to the k-th nearest neighbour in the same set.
        n_max: Largest number of examples; the first ones are used. None uses all.

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
        """Compute precision and recall; see :meth:`SampleCriterion.compute`."""
        x, y = self.rows(samples, reference)
        balls = ((x, y), (y, x))  # pairs of the features that are tested and the centres of the balls
        found = (counts(inside, around, squared_radii(around, self.k))[0] > 0 for inside, around in balls)
        precision, recall = (float(inside.double().mean()) for inside in found)
        return {titles.of("precision"): precision, titles.of("recall"): recall}
