"""The kernel distance between the features of samples and the features of data; with Inception features, it is KID."""

from __future__ import annotations

from typing import cast

from pydantic import PositiveInt
from torch import Tensor

from eblvm_lit.core.ranges import Seed
from eblvm_lit.evaluation.criteria.base import SampleCriterion
from eblvm_lit.evaluation.features.base import Titles
from eblvm_lit.evaluation.features.sets import FeatureSet
from eblvm_lit.utils.quantities import Quantity

__all__ = ["KernelDistance"]


class KernelDistance(
    SampleCriterion,
    emits={
        "{kernel}": Quantity(-1, "", "the squared maximum mean discrepancy with a cubic kernel; it may be negative"),
        "{kernel}_std": Quantity(0, "", "its standard deviation over random subsets"),
    },
):
    r"""The kernel distance ``kid`` and its standard deviation over random subsets, ``kid_std``.

    .. math:: \frac{1}{m (m - 1)} \sum_{i \ne j} \bigl(k(x_i, x_j) + k(y_i, y_j)\bigr)
              - \frac{2}{m^2} \sum_{i, j} k(x_i, y_j), \qquad k(x, y) = \bigl(x^\top y / D + 1\bigr)^3

    This unbiased estimate of the squared maximum mean discrepancy is averaged over random subsets of m samples and m
    images; it may be negative. It is computed by torch-fidelity, in float64, and not by torchmetrics, which draws the
    subsets with the global generator: this changes a KID of 0.0115 by 1e-4. Reference: Binkowski et al. 2018.

    Args:
        n_subsets: Number of subsets.
        subset_size: The number m of samples, and of images, in a subset.
        seed: Seed of the choice of subsets, the same for all models; the default is torch-fidelity's.

    Example:
        >>> import torch
        >>> from eblvm_lit.evaluation.frechet import Gaussian
        >>> none = Gaussian(torch.zeros(1), torch.zeros(1, 1))  # moments are not used
        >>> x, y = (FeatureSet(2, none, rows) for rows in (torch.zeros(2, 1), torch.ones(2, 1)))
        >>> criterion = KernelDistance(n_subsets=3, subset_size=2)
        >>> criterion.compute(x, y, Titles("fid", "kid", "inception_score"))  # 1 + 2^3 - 2
        {'kid': 7.0, 'kid_std': 0.0}
    """

    needs_rows = True

    def __init__(self, *, n_subsets: PositiveInt = 100, subset_size: PositiveInt = 1000, seed: Seed = 2020) -> None:
        self.n_subsets = n_subsets
        self.subset_size = subset_size
        self.seed = seed
        self.fewest = subset_size

    def compute(self, samples: FeatureSet, reference: FeatureSet, titles: Titles) -> dict[str, float]:
        """Compute the kernel distance; see :meth:`SampleCriterion.compute`."""
        from torch_fidelity.metric_kid import (  # imported here, because the import takes a second
            KEY_METRIC_KID_MEAN,
            KEY_METRIC_KID_STD,
            kid_features_to_metric,
        )

        found = kid_features_to_metric(
            cast(Tensor, samples.rows).double(),  # rows is not None, because needs_rows is true
            cast(Tensor, reference.rows).double(),
            kid_subsets=self.n_subsets,
            kid_subset_size=self.subset_size,
            rng_seed=self.seed,
            verbose=False,
        )
        return {titles.kernel: found[KEY_METRIC_KID_MEAN], f"{titles.kernel}_std": found[KEY_METRIC_KID_STD]}
