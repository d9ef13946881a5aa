"""Normal distributions of noise: the standard normal distribution, and a normal distribution fitted to the data."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from typing import Any

import torch
from pydantic import PositiveFloat
from torch import Tensor

from eblvm_lit.core.tensors import sum_event
from eblvm_lit.noise_distributions.base import NoiseDistribution

__all__ = ["FittedNormal", "StandardNormal"]

log = logging.getLogger(__name__)


def _standard_log_prob(eps: Tensor) -> Tensor:
    return -sum_event(0.5 * eps.square() + 0.5 * math.log(2 * math.pi))


class StandardNormal(NoiseDistribution):
    """The standard normal distribution N(0, I) as the noise distribution, as in the published code.

    It does not depend on the data.

    Reference: Bao et al. 2020 and 2021, code.

    Example:
        >>> StandardNormal().log_prob(torch.zeros(5, 2)).shape
        torch.Size([5])
    """

    def sample(self, noise: Tensor) -> Tensor:
        """Return the noise itself, which is a sample of N(0, I)."""
        return noise

    def log_prob(self, y: Tensor) -> Tensor:
        """Compute the log-density log p_n(y) of each y, shape (B,)."""
        return _standard_log_prob(y)


class FittedNormal(NoiseDistribution):
    r"""The normal distribution N(m, C) with the mean m and the covariance C of the training split.

    .. math:: C = Q\, \mathrm{diag}(s^2)\, Q^\top, \quad s_i = \max(\sqrt{\lambda_i}, \mathrm{min\_std})

    The closer p_n is to the data distribution, the more a model has to learn about the data to tell them from noise
    (Gutmann and Hyvarinen 2012). The data's covariance may be singular (pixels that never vary, fewer examples than
    dimensions), and N(m, C) then has no density. Standard deviations below ``min_std`` along the axes of C are
    therefore raised to ``min_std``, and the log says how many of them. The other standard deviations are unchanged. m,
    Q and s are stored in buffers, and so in checkpoints.

    Args:
        min_std: The smallest allowed standard deviation along any axis, in units of v.

    Example:
        >>> noise_distribution = FittedNormal()
        >>> noise_distribution.prepare((2,))
        >>> noise_distribution.fit([torch.tensor([[0.0, 5.0], [2.0, 5.0]])])
        >>> noise_distribution.mean.tolist(), noise_distribution.std.tolist()
        ([1.0, 5.0], [0.009999999776482582, 1.0])
    """

    mean: Tensor
    axes: Tensor
    std: Tensor
    fitted: Tensor

    def __init__(self, *, min_std: PositiveFloat = 0.01) -> None:
        super().__init__()
        self.min_std = min_std

    def prepare(self, event_shape: tuple[int, ...]) -> None:
        """Create buffers for the mean and covariance, with the values of N(0, I), unless they are already fitted."""
        if getattr(self, "fitted", False):
            return
        d = math.prod(event_shape)
        self.register_buffer("mean", torch.zeros(event_shape))
        self.register_buffer("axes", torch.eye(d))  # the matrix Q, with eigenvectors of C as its columns
        self.register_buffer("std", torch.ones(d))
        self.register_buffer("fitted", torch.tensor(False))

    @torch.no_grad()
    def fit(self, batches: Iterable[Tensor]) -> None:
        """Compute the mean and covariance of the training split, unless they have been loaded from a checkpoint."""
        if self.fitted:
            return
        n = 0
        total: Any = 0.0  # the first batch turns this number into a tensor
        products: Any = 0.0
        for batch in batches:
            rows = batch.double().flatten(1)  # float64 is used, because subtracting the squared mean below loses digits
            n = n + len(rows)
            total = total + rows.sum(0)
            products = products + rows.T @ rows
        mean = total / n
        variances, axes = torch.linalg.eigh(products / n - mean.outer(mean))
        n_flat = int((variances < self.min_std**2).sum())
        if n_flat:
            log.info(
                "The covariance of the data is singular or nearly so: %d of %d directions are given min_std=%g.",
                *(n_flat, len(mean), self.min_std),
            )
        self.mean.copy_(mean.view_as(self.mean))
        self.axes.copy_(axes)
        self.std.copy_(variances.clamp(min=self.min_std**2).sqrt())
        self.fitted.fill_(True)

    def sample(self, noise: Tensor) -> Tensor:
        """Transform standard normal noise (B, *event) into samples of N(m, C) of the same shape.

        A sample is m + Q (s * noise), with the axes Q and the standard deviations s of C.
        """
        return self.mean + ((noise.flatten(1) * self.std) @ self.axes.T).view_as(noise)

    def log_prob(self, y: Tensor) -> Tensor:
        """Compute the log-density log p_n(y) of each y, shape (B,)."""
        eps = ((y - self.mean).flatten(1) @ self.axes) / self.std
        return _standard_log_prob(eps) - self.std.log().sum()
