"""The base class of criteria, which compare the features of samples with those of data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from eblvm_lit.evaluation.features.base import Titles
from eblvm_lit.evaluation.features.sets import FeatureSet

__all__ = ["SampleCriterion"]


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
