"""The base class of criteria, which compare the features of samples with the features of data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import cast

from pydantic import PositiveInt
from torch import Tensor

from eblvm_lit.evaluation.features.base import Titles
from eblvm_lit.evaluation.features.sets import FeatureSet
from eblvm_lit.utils.quantities import Declares

__all__ = ["RowCriterion", "SampleCriterion"]


class SampleCriterion(Declares, ABC):
    """The base class of criteria, which compare the features of samples with the features of data.

    Like a metric, the class declares the units of its numbers, and whether higher values are better. In a declared name
    ``{suffix}`` and the other words in braces stand for the fields of the network's :class:`Titles`.

    Attributes:
        needs_rows: Whether the criterion needs the features themselves, and not only their mean and covariance.
        needs_logits: Whether the criterion needs class logits of the samples.
        fewest: The smallest number of samples, and of examples, for which the criterion is defined.
    """

    needs_rows = False
    needs_logits = False
    fewest = 2

    @abstractmethod
    def compute(self, samples: FeatureSet, reference: FeatureSet, titles: Titles) -> dict[str, float]:
        """Compare the features of samples with the features of data, and return the criterion's numbers by name.

        Args:
            samples: Features of the samples.
            reference: Features of the data.
            titles: Names that the network gives to the criteria.

        Returns:
            The criterion's numbers by name.
        """


class RowCriterion(SampleCriterion):
    """The base class of criteria that compare each sample's features with each example's features.

    Args:
        n_max: Largest number of examples with which samples are compared, because the cost is quadratic. The first
            examples are used. None uses all.
    """

    needs_rows = True

    def __init__(self, *, n_max: PositiveInt | None = None) -> None:
        self.n_max = n_max

    def rows(self, samples: FeatureSet, reference: FeatureSet) -> tuple[Tensor, Tensor]:
        """Return the features of samples (M, D) and examples (N, D) in float64, centred at the mean of the examples.

        Criteria depend only on differences of features. Subtracting the mean reduces the rounding errors of squared
        distances.
        """
        # features.rows is not None, because needs_rows is true
        x, y = (cast(Tensor, features.rows).double() for features in (samples, reference))
        centre = y[: self.n_max].mean(0)
        return x - centre, y[: self.n_max] - centre
