"""How the weights of the networks of doubly variational learning start, and their spectral norms."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.parametrize import register_parametrization

__all__ = ["normal_start", "spectrally_normalised", "xavier_start"]

LINEAR_MAPS = (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)


def normal_start(module: nn.Module, std: float = 0.02) -> nn.Module:
    """Draw all weights of linear maps and convolutions from N(0, std^2), and leave biases as they are.

    Args:
        module: Of whose weights none is normalised yet.
        std: Standard deviation.

    Example:
        >>> layer = normal_start(nn.Conv2d(16, 16, 4), std=0.5)
        >>> bool((layer.weight.std() - 0.5).abs() < 0.05)
        True
    """
    for layer in module.modules():
        if isinstance(layer, LINEAR_MAPS):
            nn.init.normal_(layer.weight, std=std)
    return module


def xavier_start(layer: nn.Module, *, residual: bool = False) -> nn.Module:
    r"""Draw a layer's weight uniformly by Glorot and Bengio 2010, with a gain of :math:`\sqrt 2` on residual paths.

    Args:
        layer: A linear map or a convolution that is not normalised yet.
        residual: Whether it stands on a residual path.

    Example:
        >>> layer = xavier_start(nn.Linear(3, 3))
        >>> bool(layer.weight.abs().max() <= 1)
        True
    """
    nn.init.xavier_uniform_(layer.weight, gain=math.sqrt(2) if residual else 1.0)
    return layer


class _SpectralNormInPlace(_SpectralNorm):
    r"""Torch's own, but for an assignment to its buffers of what is there already, which no compiler follows in a view.

    .. math:: u \leftarrow W v / \|W v\|, \quad v \leftarrow W^\top u / \|W^\top u\|

    Reference: Miyato et al. 2018, Algorithm 1.
    """

    @torch.no_grad()
    def _power_method(self, weight_mat: Tensor, n_power_iterations: int) -> None:
        for _ in range(n_power_iterations):
            self._u.copy_(normalize(weight_mat.mv(self._v), dim=0, eps=self.eps))
            self._v.copy_(normalize(weight_mat.mH.mv(self._u), dim=0, eps=self.eps))


def spectrally_normalised(module: nn.Module) -> nn.Module:
    r"""Divide every weight of linear maps and convolutions by its largest singular value (Miyato et al. 2018).

    .. math:: W \mapsto W / (u^\top W v)

    u and v are buffers, which one step of the power iteration moves in each pass in training. It comes after the
    weights have been drawn: what is drawn into ``weight`` of a parametrized layer is lost.

    Args:
        module: A layer, or a network of them.

    Example:
        >>> import torch
        >>> layer = spectrally_normalised(nn.Linear(4, 3)).eval()
        >>> bool(abs(torch.linalg.matrix_norm(layer.weight, 2) - 1) < 0.1)
        True
    """
    for layer in [*module.modules()]:
        if isinstance(layer, LINEAR_MAPS):
            axis = 1 if isinstance(layer, nn.ConvTranspose2d) else 0  # of its outputs
            register_parametrization(layer, "weight", _SpectralNormInPlace(layer.weight, dim=axis))
    return module
