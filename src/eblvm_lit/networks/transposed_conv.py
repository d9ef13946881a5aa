"""A generator of images without batch normalisation."""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor, nn

from eblvm_lit.core.ranges import ImageShape
from eblvm_lit.networks.shapes import halvings

__all__ = ["TransposedConv"]


class TransposedConv(nn.Module):
    r"""Latents to images by transposed convolutions that halve the channels, without batch normalisation.

    .. math:: [4{\times}4 \to 2^n w]\,[4{\times}4,\, \text{stride } 2 \to 2^{n-i} w], \; i = 1, \dots, n - 1; \quad
        \tanh [4{\times}4,\, \text{stride } 2 \to C]

    with a leaky rectifier between two. The image has :math:`4 \cdot 2^n` pixels on a side, all values in [-1, 1]. An
    energy may be built of it: the image of one h does not depend on the others of its batch. With w = 64 the generator
    of 32 pixels of Pang et al. 2020 (arXiv 2006.08205), with Kaiming's initial weights.

    Args:
        v_shape: Channels, height and width of the image.
        h_dim: Number of latents.
        width: w.
        negative_slope: Slope of the rectifier below zero.

    Raises:
        ConfigError: For an image whose side is not 8, 16, 32, ....

    Example:
        >>> generator = TransposedConv(v_shape=[3, 16, 16], h_dim=5, width=2)
        >>> generator(torch.zeros(7, 5)).shape
        torch.Size([7, 3, 16, 16])
    """

    def __init__(
        self,
        *,
        v_shape: ImageShape,
        h_dim: PositiveInt = 100,
        width: PositiveInt = 64,
        negative_slope: NonNegativeFloat = 0.2,
    ) -> None:
        super().__init__()
        n = halvings(v_shape)
        self.event_shape = tuple(v_shape)
        self.h_dim = h_dim
        self.first = (width * 2**n, 4, 4)
        # a transposed convolution of one pixel is a product of matrices, which a CPU does faster
        layers: list[nn.Module] = [nn.Linear(h_dim, 16 * self.first[0]), nn.Unflatten(1, self.first)]
        channels = [width * 2 ** (n - i) for i in range(n)] + [v_shape[0]]
        for n_in, n_out in pairwise(channels):
            layers += [nn.LeakyReLU(negative_slope), nn.ConvTranspose2d(n_in, n_out, 4, stride=2, padding=1)]
        # the format of a convolution's output is its kernel's
        self.layers = nn.Sequential(*layers, nn.Tanh()).to(memory_format=torch.channels_last)
        self._start(negative_slope)

    def _start(self, negative_slope: float) -> None:
        """Weights that keep the size of what passes: each output of a stride of 2 sees 4 of a kernel's 16 places."""
        for layer in self.layers:
            if isinstance(layer, nn.ConvTranspose2d):
                gain = nn.init.calculate_gain("leaky_relu", negative_slope)
                nn.init.normal_(layer.weight, std=gain / (4 * layer.in_channels) ** 0.5)
                nn.init.zeros_(cast(Tensor, layer.bias))

    def forward(self, h: Tensor) -> Tensor:
        """Images v (B, C, H, W) of latents h (B, h_dim)."""
        return self.layers(h)
