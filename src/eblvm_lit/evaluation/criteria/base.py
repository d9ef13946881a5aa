"""The base class of criteria, which compare the features of samples with those of data."""

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
    """A function of the features of samples and of data.

    Its class declares what is known of its numbers as metrics do; ``{suffix}`` stands for that of a network's titles.

    Attributes:
        needs_rows: Whether it needs the features themselves, and not only their mean and covariance.
        needs_logits: Whether it needs logits of the samples.
        fewest: The smallest number of samples, and of examples, that it is defined for.
    """

    needs_rows = False
    needs_logits = False
    fewest = 2

    @abstractmethod
    def compute(self, samples: FeatureSet, reference: FeatureSet, titles: Titles) -> dict[str, float]:
        """Compare samples with data.

        Args:
            samples: Features of the samples.
            reference: Features of the data.
            titles: Names of the numbers.
        """


class RowCriterion(SampleCriterion):
    """A function of the features themselves, of all pairs of samples and examples.

    Args:
        n_max: Largest number of examples that samples are compared with, the first ones, as the cost grows with its
            square; None for all.
    """

    needs_rows = True

    def __init__(self, *, n_max: PositiveInt | None = None) -> None:
        self.n_max = n_max

    def rows(self, samples: FeatureSet, reference: FeatureSet) -> tuple[Tensor, Tensor]:
        """The features of samples and of examples, shapes (M, D) and (N, D), float64, less the examples' mean.

        Criteria depend on differences alone, and squared distances lose digits far from zero.
        """
        x, y = (cast(Tensor, features.rows).double() for features in (samples, reference))  # needs_rows
        centre = y[: self.n_max].mean(0)
        return x - centre, y[: self.n_max] - centre
