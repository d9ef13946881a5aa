"""The distribution of independent bits whose means are fitted to the data."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from eblvm_lit.core.tensors import smoothed_mean, sum_event
from eblvm_lit.noise_distributions.base import NoiseDistribution

__all__ = ["FittedBernoulli"]


class FittedBernoulli(NoiseDistribution):
    r"""The distribution of independent bits with the means m of the training split, for energies of binary v.

    .. math:: \log p_n(y) = \sum_i y_i \log m_i + (1 - y_i) \log(1 - m_i)

    m counts one more 0 and one more 1 of each bit than were observed, so that log p_n is finite. It is stored in a
    buffer, and so in checkpoints.

    Example:
        >>> noise_distribution = FittedBernoulli()
        >>> noise_distribution.prepare((2,))
        >>> noise_distribution.fit([torch.tensor([[1.0, 0.0], [1.0, 1.0]])])
        >>> noise_distribution.mean, noise_distribution.sample(torch.tensor([[0.7, 0.7]]))
        (tensor([0.7500, 0.5000]), tensor([[1., 0.]]))
    """

    of_bits = True
    mean: Tensor
    fitted: Tensor

    def prepare(self, event_shape: tuple[int, ...]) -> None:
        """Create the buffer of the means, with the value 1/2, unless they are already fitted."""
        if not getattr(self, "fitted", False):
            self.register_buffer("mean", torch.full(event_shape, 0.5))
            self.register_buffer("fitted", torch.tensor(False))

    @torch.no_grad()
    def fit(self, batches: Iterable[Tensor]) -> None:
        """Compute the means of the training split, unless they have been loaded from a checkpoint."""
        if not self.fitted:
            self.mean.copy_(smoothed_mean(batches))
            self.fitted.fill_(True)

    def noise(self, shape: tuple[int, ...], v: Tensor, generator: torch.Generator) -> Tensor:
        """Draw uniform numbers in [0, 1), shape (*shape, *v.shape), with v's dtype and device."""
        return torch.rand((*shape, *v.shape), generator=generator, dtype=v.dtype, device=v.device)

    def sample(self, noise: Tensor) -> Tensor:
        """Turn uniform noise (B, *event) into bits y ~ p_n of the same shape."""
        return (noise < self.mean).to(noise.dtype)

    def log_prob(self, y: Tensor) -> Tensor:
        """Compute the log-probability log p_n(y) of each y, shape (B,)."""
        return sum_event(y * self.mean.log() + (1 - y) * (-self.mean).log1p())
