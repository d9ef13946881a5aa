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
    r"""A generator of images from latents: transposed convolutions that halve the channels, without batch norm.

    .. math:: [4{\times}4 \to 2^n w]\,[4{\times}4,\, \text{stride } 2 \to 2^{n-i} w], \; i = 1, \dots, n - 1; \quad
        \tanh [4{\times}4,\, \text{stride } 2 \to C]

    with a leaky ReLU between consecutive convolutions. The image has :math:`4 \cdot 2^n` pixels on a side and values in
    [-1, 1]. An energy can contain this generator, because the image of one h does not depend on the other latents of
    the batch. With w = 64 it is the generator for 32 pixels of Pang et al. 2020 (arXiv 2006.08205), except that the
    initial weights are Kaiming's.

    Args:
        v_shape: The channels, height and width of the image.
        h_dim: The number of latents.
        width: The number w; the first convolution has 2^n w channels.
        negative_slope: The slope of the leaky ReLU below zero.

    Raises:
        ConfigError: If the image is not square with a side of 8, 16, 32, ... pixels.

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
        # The first transposed convolution has a 1x1 input; as a linear layer it is faster on a CPU.
        layers: list[nn.Module] = [nn.Linear(h_dim, 16 * self.first[0]), nn.Unflatten(1, self.first)]
        channels = [width * 2 ** (n - i) for i in range(n)] + [v_shape[0]]
        for n_in, n_out in pairwise(channels):
            layers += [nn.LeakyReLU(negative_slope), nn.ConvTranspose2d(n_in, n_out, 4, stride=2, padding=1)]
        # A convolution returns its output in the memory format of its kernel, so it is enough to convert the kernels.
        self.layers = nn.Sequential(*layers, nn.Tanh()).to(memory_format=torch.channels_last)
        self._start(negative_slope)

    def _start(self, negative_slope: float) -> None:
        """Initialise the weights so that the scale of the activations is preserved across layers.

        With a stride of 2 each output pixel depends on only 4 of a kernel's 16 positions.
        """
        for layer in self.layers:
            if isinstance(layer, nn.ConvTranspose2d):
                gain = nn.init.calculate_gain("leaky_relu", negative_slope)
                nn.init.normal_(layer.weight, std=gain / (4 * layer.in_channels) ** 0.5)
                nn.init.zeros_(cast(Tensor, layer.bias))

    def forward(self, h: Tensor) -> Tensor:
        """Generate images v (B, C, H, W) from latents h (B, h_dim)."""
        return self.layers(h)
