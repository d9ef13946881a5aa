"""The base class of criteria, which compare the features of samples with those of data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import cast

from torch import Tensor

from eblvm_lit.errors import ConfigError
from eblvm_lit.evaluation.features.base import Titles
from eblvm_lit.evaluation.features.sets import FeatureSet

__all__ = ["RowCriterion", "SampleCriterion"]


class SampleCriterion(ABC):
    """A function of the features of samples and of data.

    Attributes:
        needs_rows: Whether it needs the features themselves, and not only their mean and covariance.
        needs_logits: Whether it needs logits of the samples.
    """

    needs_rows = False
    needs_logits = False

    def check(self, n_samples: int, n_reference: int) -> None:  # noqa: B027 - most need no check
        """Raise a ConfigError where there are too few images."""

    def names(self, titles: Titles) -> Sequence[str] | None:  # noqa: ARG002 - part of the contract
        """The names of the numbers that :meth:`compute` will return; None if they are not known before."""
        return None

    @abstractmethod
    def compute(self, samples: FeatureSet, reference: FeatureSet, titles: Titles) -> dict[str, float]:
        """Compare samples with data.

        Args:
            samples: Features of the samples.
            reference: Features of the data.
            titles: Names of the numbers.
        """

    def describe(self) -> dict[str, int | float | str]:
        """Its settings, for the record."""
        return {}


class RowCriterion(SampleCriterion):
    """A function of the features themselves, of all pairs of samples and examples.

    Args:
        n_max: Largest number of examples that samples are compared with, the first ones, as the cost grows with its
            square; None for all.

    Raises:
        ConfigError: For n_max < 2.
    """

    needs_rows = True

    def __init__(self, *, n_max: int | None = None) -> None:
        if n_max is not None and n_max < 2:
            raise ConfigError(f"{type(self).__name__} needs n_max >= 2 examples or null, not {n_max}.")
        self.n_max = n_max

    def n_examples(self, n_reference: int) -> int:
        """How many of the examples it looks at."""
        return n_reference if self.n_max is None else min(self.n_max, n_reference)

    def rows(self, samples: FeatureSet, reference: FeatureSet) -> tuple[Tensor, Tensor]:
        """The features of samples and of examples, shapes (M, D) and (N, D), float64, less the examples' mean.

        Criteria depend on differences alone, and squared distances lose digits far from zero.
        """
        x, y = (cast(Tensor, features.rows).double() for features in (samples, reference))  # needs_rows
        centre = y[: self.n_max].mean(0)
        return x - centre, y[: self.n_max] - centre

    def describe(self) -> dict[str, int | float | str]:
        """The largest number of examples, if there is one."""
        return {} if self.n_max is None else {"n_max": self.n_max}
