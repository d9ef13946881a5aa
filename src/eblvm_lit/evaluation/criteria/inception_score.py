"""The Inception score of samples, by class logits."""

from __future__ import annotations

from eblvm_lit.errors import ConfigError
from eblvm_lit.evaluation.criteria.base import SampleCriterion
from eblvm_lit.evaluation.features.base import Titles
from eblvm_lit.evaluation.features.sets import FeatureSet

__all__ = ["InceptionScore"]


class InceptionScore(SampleCriterion):
    r"""``inception_score``: how confident a classifier is of each sample, and how diverse its classes are.

    .. math:: \exp\, E_x\, \mathrm{KL}\bigl(p(y|x) \,\|\, E_x\, p(y|x)\bigr)

    The mean over parts of the shuffled samples, and ``inception_score_std``, the deviation over these. Between 1 and
    the number of classes; higher is better; data are not used. Computed by torch-fidelity's own function.
    Reference: Salimans et al. 2016.

    Args:
        n_splits: Number of parts.
        seed: Of the shuffling; torch-fidelity's own.

    Raises:
        ConfigError: For fewer than one part.

    Example:
        >>> import torch
        >>> from eblvm_lit.evaluation.frechet import Gaussian
        >>> none = Gaussian(torch.zeros(1), torch.zeros(1, 1))  # not needed
        >>> alike = FeatureSet(4, none, None, torch.zeros(4, 10))
        >>> found = InceptionScore(n_splits=2).compute(alike, alike, Titles("fid", "kid", "inception_score"))
        >>> {name: round(value, 9) for name, value in found.items()}
        {'inception_score': 1.0, 'inception_score_std': 0.0}
    """

    needs_logits = True

    def __init__(self, *, n_splits: int = 10, seed: int = 2020) -> None:
        if n_splits < 1:
            raise ConfigError(f"The Inception score needs n_splits >= 1, not {n_splits}.")
        if not 0 <= seed < 2**32:
            raise ConfigError(f"The Inception score needs a seed between 0 and {2**32 - 1}, not {seed}.")
        self.n_splits, self.seed = n_splits, seed

    def check(self, n_samples: int, n_reference: int) -> None:  # noqa: ARG002 - it uses samples alone
        """Refuse empty parts."""
        if n_samples < self.n_splits:
            raise ConfigError(
                f"The Inception score needs n_splits <= {n_samples}, the number of samples, and it is {self.n_splits}: "
                "lower it, or draw more samples."
            )

    def names(self, titles: Titles) -> list[str]:
        """The names of the numbers; see :meth:`SampleCriterion.names`."""
        return [titles.inception_score, f"{titles.inception_score}_std"]

    def compute(self, samples: FeatureSet, reference: FeatureSet, titles: Titles) -> dict[str, float]:  # noqa: ARG002
        """The score; see :meth:`SampleCriterion.compute`."""
        from torch_fidelity.metric_isc import (  # takes a second: paid by those who use it
            KEY_METRIC_ISC_MEAN,
            KEY_METRIC_ISC_STD,
            isc_features_to_metric,
        )

        found = isc_features_to_metric(samples.logits, splits=self.n_splits, shuffle=True, rng_seed=self.seed)
        values = found[KEY_METRIC_ISC_MEAN], found[KEY_METRIC_ISC_STD]
        return dict(zip(self.names(titles), values, strict=True))

    def describe(self) -> dict[str, int]:
        """The parts."""
        return {"n_splits": self.n_splits, "seed": self.seed}
