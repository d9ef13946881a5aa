"""The shares of the rarest and the commonest class among samples, computed from class logits."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from eblvm_lit.evaluation.criteria.base import SampleCriterion
from eblvm_lit.evaluation.features.base import Titles
from eblvm_lit.evaluation.features.sets import FeatureSet
from eblvm_lit.utils.quantities import Quantity

__all__ = ["ClassShares"]


class ClassShares(
    SampleCriterion,
    emits={
        "rarest_class{suffix}": Quantity(0, "", "the share of the samples that belong to the rarest class"),
        "commonest_class{suffix}": Quantity(0, "", "the share of the samples that belong to the commonest class"),
    },
):
    """The shares of the rarest and the commonest class: if they differ from those of the data, classes are missing.

    The class of a sample is that with the largest logit. The criterion does not use the data.

    Example:
        >>> import torch
        >>> from eblvm_lit.evaluation.frechet import Gaussian
        >>> none = Gaussian(torch.zeros(1), torch.zeros(1, 1))  # moments are not used
        >>> samples = FeatureSet(4, none, None, torch.eye(3)[[0, 0, 0, 2]])
        >>> ClassShares().compute(samples, samples, Titles("fd", "kd", "score"))
        {'rarest_class': 0.0, 'commonest_class': 0.75}
    """

    needs_logits = True
    fewest = 1

    def compute(self, samples: FeatureSet, reference: FeatureSet, titles: Titles) -> dict[str, float]:
        """Compute the shares; see :meth:`SampleCriterion.compute`."""
        logits = cast(Tensor, samples.logits)
        shares = logits.argmax(1).bincount(minlength=logits.shape[1]) / samples.n
        return {titles.of("rarest_class"): float(shares.min()), titles.of("commonest_class"): float(shares.max())}
