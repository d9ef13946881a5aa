"""Batch normalisation by the statistics of the whole minibatch, on however many processes it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from eblvm_lit.core.minibatch import WHOLE, Minibatch

__all__ = ["BatchNorm2d", "local_batch_norms", "statistics_over"]

TORCHS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class BatchNorm2d(nn.BatchNorm2d):
    r"""torch's own, with mean and variance over all processes where several share a minibatch in training.

    .. math:: y = \gamma\, (x - \mu) / \sqrt{\sigma^2 + \epsilon} + \beta

    Both statistics are differentiated, to any order; torch's synchronised one is for GPUs only, and for one order.
    Reference: Ioffe and Szegedy 2015.

    Attributes:
        minibatch: Where the statistics come from; the training loop sets it where processes share minibatches.

    Example:
        >>> norm = BatchNorm2d(2)
        >>> norm(torch.randn(5, 2, 3, 3)).mean().abs() < 1e-6
        tensor(True)
    """

    minibatch: Minibatch = WHOLE

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x (B, C, H, W); in training, move the running statistics in place."""
        if self.minibatch.rows is None or not self.training:
            return super().forward(x)
        # both moments in one exchange; about the running mean, which is near, the second loses no digits to the first
        near = self.running_mean.clone()
        shifted = x - near.view(-1, 1, 1)
        moments = torch.stack([shifted.mean((0, 2, 3)), shifted.square().mean((0, 2, 3))])
        mean, square = self.minibatch.mean(moments)
        variance = square - mean.square()
        self._follow(near + mean, variance, self.minibatch.size(x) * x[0, 0].numel())
        scale = self.weight * (variance + self.eps).rsqrt()
        return (shifted - mean.view(-1, 1, 1)) * scale.view(-1, 1, 1) + self.bias.view(-1, 1, 1)

    def _follow(self, mean: Tensor, variance: Tensor, n: int) -> None:
        """Move the running statistics towards those of n values; the variance to the unbiased one."""
        self.num_batches_tracked.add_(1)
        self.running_mean.mul_(1 - self.momentum).add_(mean.detach(), alpha=self.momentum)
        self.running_var.mul_(1 - self.momentum).add_(variance.detach(), alpha=self.momentum * n / (n - 1))


def local_batch_norms(module: nn.Module) -> dict[str, nn.Module]:
    """Batch normalisations by the statistics of one process' rows alone, by name.

    Example:
        >>> list(local_batch_norms(nn.Sequential(BatchNorm2d(3), nn.BatchNorm1d(2))))
        ['1']
    """
    parts = module.named_modules()
    return {name: part for name, part in parts if isinstance(part, TORCHS) and not isinstance(part, BatchNorm2d)}


@contextmanager
def statistics_over(module: nn.Module, minibatch: Minibatch) -> Iterator[None]:
    """Inside, the batch normalisations of a module take their statistics over a minibatch that processes share.

    Example:
        >>> norm = BatchNorm2d(2)
        >>> with statistics_over(norm, WHOLE):
        ...     norm.minibatch is WHOLE
        True
    """
    norms = [] if minibatch is WHOLE else [part for part in module.modules() if isinstance(part, BatchNorm2d)]
    for norm in norms:
        norm.minibatch = minibatch
    try:
        yield
    finally:
        for norm in norms:
            norm.minibatch = WHOLE
