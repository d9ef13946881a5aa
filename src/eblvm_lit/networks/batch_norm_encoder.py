"""The plain convolutional features of the encoder of doubly variational learning."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from eblvm_lit.errors import ConfigError
from eblvm_lit.networks.batch_norm import BatchNorm2d
from eblvm_lit.networks.initialisation import normal_start
from eblvm_lit.networks.shapes import halvings

__all__ = ["BatchNormEncoder"]


class BatchNormEncoder(nn.Module):
    r"""A 3x3 convolution, then strided 4x4 ones that double the channels, each with batch normalisation.

    .. math:: [3{\times}3 \to w]\,[4{\times}4,\, \text{stride } 2 \to 2^i w], \; i = 1, \dots, n

    The image has :math:`4 \cdot 2^n` pixels on a side, and there are :math:`16 \cdot 2^n w` features. With w = 48 the
    published encoders' at 32, 64 and 128 (Kan et al. 2022, code).

    Args:
        v_shape: Channels, height and width of the image.
        width: w.
        negative_slope: Slope of the rectifier below zero.

    Raises:
        ConfigError: For an image whose side is not 8, 16, 32, ..., or a width below one.

    Example:
        >>> network = BatchNormEncoder(v_shape=[3, 16, 16], width=2)
        >>> network.out_dim, network(torch.zeros(5, 3, 16, 16)).shape
        (128, torch.Size([5, 128]))
    """

    def __init__(self, *, v_shape: Sequence[int], width: int = 48, negative_slope: float = 0.2) -> None:
        super().__init__()
        n = halvings(v_shape)
        if width < 1:
            raise ConfigError(f"A convolutional encoder needs width >= 1, not {width}.")
        self.event_shape, self.out_dim = tuple(v_shape), 16 * width * 2**n
        convolutions = [nn.Conv2d(v_shape[0], width, 3, padding=1, bias=False)]
        for i in range(n):
            n_in = width * 2**i
            convolutions.append(nn.Conv2d(n_in, 2 * n_in, 4, stride=2, padding=1, bias=False))
        layers: list[nn.Module] = []
        for convolution in convolutions:
            layers += [convolution, BatchNorm2d(convolution.out_channels), nn.LeakyReLU(negative_slope)]
        # the format of a convolution's output is its kernel's
        self.layers = normal_start(nn.Sequential(*layers)).to(memory_format=torch.channels_last)

    def forward(self, v: Tensor) -> Tensor:
        """Features, shape (B, out_dim), of images v (B, C_in, H, W)."""
        return self.layers(v).flatten(1)
