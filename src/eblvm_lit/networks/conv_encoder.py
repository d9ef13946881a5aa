"""The convolutional feature network of posteriors q(h|v) for images v."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from pydantic import NonNegativeFloat
from torch import Tensor, nn

from eblvm_lit.core.ranges import ImageShape, Sizes
from eblvm_lit.networks.shapes import image_shape

__all__ = ["ConvEncoder"]


class ConvEncoder(nn.Module):
    """A feature network of 3x3 convolutions, each followed by a leaky ReLU; the last output is flattened.

    The defaults are those of the published posterior (Bao et al. 2020, code): three convolutions, each of which halves
    the resolution, and (H/8)(W/8) 256 features.

    Args:
        v_shape: The channels, height and width of the image.
        widths: The number of output channels of each convolution.
        strides: The stride of each convolution; all 2 if not given.
        negative_slope: The slope of the leaky ReLU below zero.

    Raises:
        ConfigError: If the height or the width is not divisible by the product of the strides.

    Example:
        >>> encoder = ConvEncoder(v_shape=[1, 16, 16])
        >>> encoder.out_dim, encoder(torch.zeros(5, 1, 16, 16)).shape
        (1024, torch.Size([5, 1024]))
    """

    def __init__(
        self,
        *,
        v_shape: ImageShape,
        widths: Sizes = (64, 128, 256),
        strides: Sizes | None = None,
        negative_slope: NonNegativeFloat = 0.2,
    ) -> None:
        super().__init__()
        strides = [2] * len(widths) if strides is None else list(strides)
        factor = math.prod(strides)
        self.event_shape = image_shape(v_shape, factor)
        depth, height, width = self.event_shape
        self.out_dim = (height // factor) * (width // factor) * widths[-1]
        layers: list[nn.Module] = []
        for (n_in, n_out), stride in zip(pairwise([depth, *widths]), strides, strict=True):
            layers += [nn.Conv2d(n_in, n_out, 3, stride=stride, padding=1), nn.LeakyReLU(negative_slope)]
        self.layers = nn.Sequential(*layers)
        # A convolution returns its output in the memory format of its kernel, so it is enough to convert the kernels.
        self.to(memory_format=torch.channels_last)

    def forward(self, v: Tensor) -> Tensor:
        """Compute the features, shape (B, out_dim), of images v (B, C_in, H, W)."""
        return self.layers(v).flatten(1)
