"""The plain convolutional features of the energy of doubly variational learning, for images of any doubled size."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from eblvm_lit.errors import ConfigError
from eblvm_lit.networks.initialisation import normal_start, spectrally_normalised
from eblvm_lit.networks.shapes import halvings

__all__ = ["SpectralConv"]


class SpectralConv(nn.Module):
    r"""Pairs of 3x3 and strided 4x4 convolutions with spectral norms, down to one pixel.

    .. math:: [3{\times}3 \to 2^i e]\,[4{\times}4,\, \text{stride } 2 \to 2^i e], \; i = 0, \dots, n - 1; \quad
        [3{\times}3 \to 2^n e]\,[4{\times}4 \to 2^n e]

    with a leaky rectifier between two convolutions, and none after the last; the image has :math:`4 \cdot 2^n` pixels
    on a side. With e = 64 the published energies' at 32, 64 and 128 (Kan et al. 2022, code).

    Args:
        v_shape: Channels, height and width of the image.
        width: e.
        negative_slope: Slope of the rectifier below zero.

    Raises:
        ConfigError: For an image whose side is not 8, 16, 32, ..., or a width below one.

    Example:
        >>> network = SpectralConv(v_shape=[3, 16, 16], width=2)
        >>> network.out_dim, network(torch.zeros(5, 3, 16, 16)).shape
        (8, torch.Size([5, 8]))
    """

    def __init__(self, *, v_shape: Sequence[int], width: int = 64, negative_slope: float = 0.1) -> None:
        super().__init__()
        n = halvings(v_shape)
        if width < 1:
            raise ConfigError(f"A convolutional energy needs width >= 1, not {width}.")
        self.event_shape, self.out_dim = tuple(v_shape), width * 2**n
        layers: list[nn.Module] = []
        n_in = v_shape[0]
        for i in range(n + 1):
            n_out = width * 2**i
            layers += [nn.Conv2d(n_in, n_out, 3, padding=1), nn.LeakyReLU(negative_slope)]
            if i < n:
                layers += [nn.Conv2d(n_out, n_out, 4, stride=2, padding=1), nn.LeakyReLU(negative_slope)]
            n_in = n_out
        # a 4x4 convolution of 4x4 pixels is a product of matrices, seven times as fast as one on a CPU
        layers += [nn.Flatten(), nn.Linear(16 * n_in, n_in)]
        # the format of a convolution's output is its kernel's
        self.layers = normal_start(nn.Sequential(*layers)).to(memory_format=torch.channels_last)
        spectrally_normalised(self.layers)

    def forward(self, v: Tensor) -> Tensor:
        """Features, shape (B, out_dim), of images v (B, C_in, H, W)."""
        return self.layers(v)
