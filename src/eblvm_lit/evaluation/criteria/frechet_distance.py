"""The Fréchet distance between the features of samples and the features of data; with Inception features, it is FID."""

from __future__ import annotations

from eblvm_lit.evaluation.criteria.base import SampleCriterion
from eblvm_lit.evaluation.features.base import Titles
from eblvm_lit.evaluation.features.sets import FeatureSet
from eblvm_lit.evaluation.frechet import frechet_distance
from eblvm_lit.utils.quantities import Quantity

__all__ = ["FrechetDistance"]


class FrechetDistance(
    SampleCriterion,
    emits={"{frechet}": Quantity(-1, "", "the Fréchet distance between the features of samples and of data")},
):
    """The Fréchet distance: ``fid`` with Inception features, ``fd_classifier`` with the features of a classifier.

    Lower is better. The distance is biased upwards, and the bias grows as the number of samples falls: compare only
    values that were computed from the same number of samples. Reference: Heusel et al. 2017.

    Example:
        >>> import torch
        >>> from eblvm_lit.evaluation.frechet import Gaussian
        >>> p = FeatureSet(9, Gaussian(torch.zeros(2).double(), torch.eye(2).double()))
        >>> FrechetDistance().compute(p, p, Titles("fid", "kid", "inception_score"))["fid"] < 1e-9
        True
    """

    def compute(self, samples: FeatureSet, reference: FeatureSet, titles: Titles) -> dict[str, float]:
        """Compute the Fréchet distance; see :meth:`SampleCriterion.compute`."""
        return {titles.frechet: frechet_distance(samples.gaussian, reference.gaussian)}
