"""The Inception score of samples, computed from class logits."""

from __future__ import annotations

from pydantic import PositiveInt

from eblvm_lit.core.ranges import Seed
from eblvm_lit.evaluation.criteria.base import SampleCriterion
from eblvm_lit.evaluation.features.base import Titles
from eblvm_lit.evaluation.features.sets import FeatureSet
from eblvm_lit.utils.quantities import Quantity

__all__ = ["InceptionScore"]


class InceptionScore(
    SampleCriterion,
    emits={
        "{inception_score}": Quantity(
            1, "", "high if a classifier is sure of each sample's class and the classes vary"
        ),
        "{inception_score}_std": Quantity(0, "", "its standard deviation over parts of the samples"),
    },
):
    r"""The ``inception_score``, which is high if a classifier is sure of each sample's class and classes are diverse.

    .. math:: \exp\, E_x\, \mathrm{KL}\bigl(p(y|x) \,\|\, E_x\, p(y|x)\bigr)

    The samples are shuffled and split into parts; the score is the mean over the parts, and ``inception_score_std`` the
    standard deviation over them. It lies between 1 and the number of classes, and higher is better. It does not use the
    data. It is computed by torch-fidelity and not by torchmetrics, which shuffles with the global generator: this
    changes a score of 6.565 by 0.002 and its standard deviation of 0.12 by 0.05. Reference: Salimans et al. 2016.

    Args:
        n_splits: Number of parts.
        seed: Seed of the shuffling; the default is torch-fidelity's.

    Example:
        >>> import torch
        >>> from eblvm_lit.evaluation.frechet import Gaussian
        >>> none = Gaussian(torch.zeros(1), torch.zeros(1, 1))  # moments are not used
        >>> alike = FeatureSet(4, none, None, torch.zeros(4, 10))
        >>> found = InceptionScore(n_splits=2).compute(alike, alike, Titles("fid", "kid", "inception_score"))
        >>> {name: round(value, 9) for name, value in found.items()}
        {'inception_score': 1.0, 'inception_score_std': 0.0}
    """

    needs_logits = True

    def __init__(self, *, n_splits: PositiveInt = 10, seed: Seed = 2020) -> None:
        self.n_splits = n_splits
        self.seed = seed
        self.fewest = n_splits

    def compute(self, samples: FeatureSet, reference: FeatureSet, titles: Titles) -> dict[str, float]:
        """Compute the score; see :meth:`SampleCriterion.compute`."""
        from torch_fidelity.metric_isc import (  # imported here, because the import takes a second
            KEY_METRIC_ISC_MEAN,
            KEY_METRIC_ISC_STD,
            isc_features_to_metric,
        )

        found = isc_features_to_metric(samples.logits, splits=self.n_splits, shuffle=True, rng_seed=self.seed)
        mean = found[KEY_METRIC_ISC_MEAN]
        std = found[KEY_METRIC_ISC_STD]
        return {titles.inception_score: mean, f"{titles.inception_score}_std": std}
