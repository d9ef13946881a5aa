"""Layers for BiDVL's networks: batch normalisation over the whole minibatch, spectral norms and initial weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.parametrize import register_parametrization

from eblvm_lit.core.minibatch import WHOLE, Minibatch

__all__ = [
    "BatchNorm2d",
    "linear_layers",
    "local_batch_norms",
    "normal_start",
    "spectrally_normalised",
    "statistics_over",
    "xavier_start",
]

TORCHS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class BatchNorm2d(nn.BatchNorm2d):
    r"""PyTorch's batch normalisation, with statistics over all processes that share a training minibatch.

    .. math:: y = \gamma\, (x - \mu) / \sqrt{\sigma^2 + \epsilon} + \beta

    Mean and variance can be differentiated to any order. PyTorch's ``SyncBatchNorm`` supports only GPUs and only first
    derivatives. Reference: Ioffe and Szegedy 2015.

    Attributes:
        minibatch: The minibatch over which the statistics are computed; the training loop sets it if processes share
            minibatches.

    Example:
        >>> norm = BatchNorm2d(2)
        >>> norm(torch.randn(5, 2, 3, 3)).mean().abs() < 1e-6
        tensor(True)
    """

    minibatch: Minibatch = WHOLE
    # PyTorch declares these attributes optional, because it can disable running statistics; here they always exist.
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    momentum: float

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x (B, C, H, W); in training mode also update the running statistics in place."""
        if self.minibatch.rows is None or not self.training:
            return super().forward(x)
        # The mean and the mean square are stacked, so that one all-reduce averages both over the processes. The running
        # mean is subtracted first: it is close to the minibatch's mean, so that the variance, the mean square minus the
        # squared mean, loses few digits.
        near = self.running_mean.clone()
        shifted = x - near.view(-1, 1, 1)
        moments = torch.stack([shifted.mean((0, 2, 3)), shifted.square().mean((0, 2, 3))])
        mean, square = self.minibatch.mean(moments)
        variance = square - mean.square()
        self._follow(near + mean, variance, self.minibatch.size(x) * x[0, 0].numel())
        scale = self.weight * (variance + self.eps).rsqrt()
        return (shifted - mean.view(-1, 1, 1)) * scale.view(-1, 1, 1) + self.bias.view(-1, 1, 1)

    def _follow(self, mean: Tensor, variance: Tensor, n: int) -> None:
        """Update the running mean and unbiased running variance with the mean and biased variance of n values."""
        self.num_batches_tracked.add_(1)
        self.running_mean.mul_(1 - self.momentum).add_(mean.detach(), alpha=self.momentum)
        self.running_var.mul_(1 - self.momentum).add_(variance.detach(), alpha=self.momentum * n / (n - 1))


def local_batch_norms(module: nn.Module) -> dict[str, nn.Module]:
    """Return a dict from names to the batch-norm layers whose statistics cover only the examples of one process.

    Example:
        >>> list(local_batch_norms(nn.Sequential(BatchNorm2d(3), nn.BatchNorm1d(2))))
        ['1']
    """
    parts = module.named_modules()
    return {name: part for name, part in parts if isinstance(part, TORCHS) and not isinstance(part, BatchNorm2d)}


@contextmanager
def statistics_over(module: nn.Module, minibatch: Minibatch) -> Iterator[None]:
    """Inside this context, compute the module's batch-norm statistics over a minibatch that processes share.

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


LINEAR_MAPS = (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)
Module = TypeVar("Module", bound=nn.Module)
LinearMap = TypeVar("LinearMap", nn.Conv2d, nn.ConvTranspose2d, nn.Linear)


def linear_layers(sizes: Sequence[int], activation: Callable[[], nn.Module]) -> list[nn.Module]:
    """Build one linear layer for each pair of consecutive sizes, with an activation after each layer.

    Example:
        >>> linear_layers([2, 8], nn.ELU)
        [Linear(in_features=2, out_features=8, bias=True), ELU(alpha=1.0)]
    """
    pairs = ([nn.Linear(n_in, n_out), activation()] for n_in, n_out in pairwise(sizes))
    return [layer for pair in pairs for layer in pair]


def normal_start(module: Module, std: float = 0.02) -> Module:
    """Draw the weights of all linear layers and convolutions from N(0, std^2), and leave biases unchanged.

    Args:
        module: A module to which no spectral normalisation has been applied yet.
        std: The standard deviation of the weights.

    Example:
        >>> layer = normal_start(nn.Conv2d(16, 16, 4), std=0.5)
        >>> bool((layer.weight.std() - 0.5).abs() < 0.05)
        True
    """
    for layer in module.modules():
        if isinstance(layer, LINEAR_MAPS):
            nn.init.normal_(layer.weight, std=std)
    return module


def xavier_start(layer: LinearMap, *, residual: bool = False) -> LinearMap:
    r"""Draw a layer's weights from Xavier's uniform distribution, with a gain of :math:`\sqrt 2` on residual paths.

    Reference: Glorot and Bengio 2010.

    Args:
        layer: A linear map or a convolution to which no spectral normalisation has been applied yet.
        residual: Whether the layer is on the residual path of a block (not its shortcut).

    Example:
        >>> layer = xavier_start(nn.Linear(3, 3))
        >>> bool(layer.weight.abs().max() <= 1)
        True
    """
    nn.init.xavier_uniform_(layer.weight, gain=math.sqrt(2) if residual else 1.0)
    return layer


class _SpectralNormInPlace(_SpectralNorm):
    r"""PyTorch's spectral norm, with in-place updates of its buffers.

    PyTorch's own version also reassigns the buffers; ``torch.compile`` cannot trace this in a functional view of a
    module.

    .. math:: u \leftarrow W v / \|W v\|, \quad v \leftarrow W^\top u / \|W^\top u\|

    Reference: Miyato et al. 2018, Algorithm 1.
    """

    @torch.no_grad()
    def _power_method(self, weight_mat: Tensor, n_power_iterations: int) -> None:
        for _ in range(n_power_iterations):
            self._u.copy_(normalize(weight_mat.mv(self._v), dim=0, eps=self.eps))
            self._v.copy_(normalize(weight_mat.mH.mv(self._u), dim=0, eps=self.eps))


def spectrally_normalised(module: Module) -> Module:
    r"""Divide the weight of every linear layer and convolution by its largest singular value (Miyato et al. 2018).

    .. math:: W \mapsto W / (u^\top W v)

    u and v are buffers that one step of the power iteration updates in each forward pass in training mode. Call this
    after the weights have been initialised: values written into ``weight`` of a parametrized layer are lost.

    Args:
        module: A layer, or a network that contains such layers.

    Example:
        >>> import torch
        >>> layer = spectrally_normalised(nn.Linear(4, 3)).eval()
        >>> bool(abs(torch.linalg.matrix_norm(layer.weight, 2) - 1) < 0.1)
        True
    """
    for layer in [*module.modules()]:
        if isinstance(layer, LINEAR_MAPS):
            axis = 1 if isinstance(layer, nn.ConvTranspose2d) else 0  # the axis of the output channels
            register_parametrization(layer, "weight", _SpectralNormInPlace(layer.weight, dim=axis))
    return module
