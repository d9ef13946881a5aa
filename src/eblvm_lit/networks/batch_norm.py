"""Batch normalisation by the statistics of the whole minibatch, on however many processes it is."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from eblvm_lit.distributed.ranks import rank_and_size
from eblvm_lit.distributed.reductions import mean_over_ranks
from eblvm_lit.distributed.shards import current_shard
from eblvm_lit.errors import ConfigError

__all__ = ["BatchNorm2d", "check_batch_norms"]


class BatchNorm2d(nn.BatchNorm2d):
    r"""torch's own, with mean and variance over all processes where several share a minibatch in training.

    .. math:: y = \gamma\, (x - \mu) / \sqrt{\sigma^2 + \epsilon} + \beta

    Both statistics are differentiated, to any order; torch's synchronised one is for GPUs only, and for one order.
    Reference: Ioffe and Szegedy 2015.

    Example:
        >>> norm = BatchNorm2d(2)
        >>> norm(torch.randn(5, 2, 3, 3)).mean().abs() < 1e-6
        tensor(True)
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x (B, C, H, W); in training, move the running statistics in place."""
        share = current_shard()
        if share is None or not self.training:
            return super().forward(x)
        # both moments in one exchange; about the running mean, which is near, the second loses no digits to the first
        near = self.running_mean.clone()
        shifted = x - near.view(-1, 1, 1)
        moments = torch.stack([shifted.mean((0, 2, 3)), shifted.square().mean((0, 2, 3))])
        mean, square = mean_over_ranks(moments)
        variance = square - mean.square()
        self._follow(near + mean, variance, share.n * x[0, 0].numel())
        scale = self.weight * (variance + self.eps).rsqrt()
        return (shifted - mean.view(-1, 1, 1)) * scale.view(-1, 1, 1) + self.bias.view(-1, 1, 1)

    def _follow(self, mean: Tensor, variance: Tensor, n: int) -> None:
        """Move the running statistics towards those of n values; the variance to the unbiased one."""
        self.num_batches_tracked.add_(1)
        self.running_mean.mul_(1 - self.momentum).add_(mean.detach(), alpha=self.momentum)
        self.running_var.mul_(1 - self.momentum).add_(variance.detach(), alpha=self.momentum * n / (n - 1))


def check_batch_norms(module: nn.Module) -> None:
    """Refuse batch normalisation by one process' statistics, where there are several.

    Raises:
        ConfigError: Names the module.

    Example:
        >>> check_batch_norms(nn.BatchNorm1d(2))  # with one process
    """
    if rank_and_size()[1] == 1:
        return
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and not isinstance(part, BatchNorm2d):
            raise ConfigError(
                f"{name} is torch's {type(part).__name__}, whose statistics would be those of one device: use "
                "eblvm_lit.networks.batch_norm.BatchNorm2d, or trainer.devices=1."
            )
