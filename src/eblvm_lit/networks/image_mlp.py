"""A multilayer perceptron that maps images to features."""

from __future__ import annotations

import math

from torch import Tensor, nn

from eblvm_lit.core.ranges import ImageShape, Sizes
from eblvm_lit.networks.layers import linear_layers
from eblvm_lit.networks.shapes import image_shape

__all__ = ["ImageMLP"]


class ImageMLP(nn.Module):
    r"""A fully connected feature network for images, with a sigmoid linear unit (SiLU) after each layer.

    .. math:: x \mapsto a(A x + b), \quad a(z) = z / (1 + e^{-z})

    Each layer sees the whole image. An energy on these features therefore learns how the parts of an image belong
    together in far fewer iterations than one on the features of a convolutional network, and each iteration costs less.
    In return, strokes are less sharp, and the number of parameters grows with the number of pixels, so that the network
    suits small images. SiLU is smooth because score matching differentiates twice. Reference for SiLU: Elfwing et al.
    2018 (arXiv 1702.03118).

    Args:
        v_shape: The channels, height and width of the image.
        widths: The width of each layer's output; the last is the number of features.

    Raises:
        ConfigError: If v_shape leaves the image's size open because ``data.size`` is not set.

    Example:
        >>> import torch
        >>> network = ImageMLP(v_shape=[1, 8, 8], widths=[32, 16])
        >>> network.out_dim, network(torch.zeros(5, 1, 8, 8)).shape
        (16, torch.Size([5, 16]))
    """

    def __init__(self, *, v_shape: ImageShape, widths: Sizes = (1024, 1024, 1024)) -> None:
        super().__init__()
        self.event_shape = image_shape(v_shape, 1)
        self.out_dim = widths[-1]
        self.layers = nn.Sequential(*linear_layers([math.prod(self.event_shape), *widths], nn.SiLU))

    def forward(self, v: Tensor) -> Tensor:
        """Compute the features, shape (B, out_dim), of images v (B, C, H, W)."""
        return self.layers(v.flatten(1))
