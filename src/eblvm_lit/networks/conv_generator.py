"""The plain convolutional generator of doubly variational learning."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from eblvm_lit.errors import ConfigError
from eblvm_lit.networks.batch_norm import BatchNorm2d
from eblvm_lit.networks.initialisation import normal_start
from eblvm_lit.networks.shapes import halvings

__all__ = ["ConvGenerator"]


class ConvGenerator(nn.Module):
    r"""Latents to images by transposed convolutions that halve the channels, each with batch normalisation.

    .. math:: [4{\times}4 \to 2^n w]\,[4{\times}4,\, \text{stride } 2 \to 2^{n-i} w], \; i = 0, \dots, n - 1; \quad
        \tanh [3{\times}3 \to C]

    The image has :math:`4 \cdot 2^n` pixels on a side, all values in [-1, 1]. With w = 48 the published generators at
    32, 64 and 128 (Kan et al. 2022, code).

    Args:
        v_shape: Channels, height and width of the image.
        h_dim: Number of latents.
        width: w.

    Raises:
        ConfigError: For an image whose side is not 8, 16, 32, ..., or a size below one.

    Example:
        >>> generator = ConvGenerator(v_shape=[3, 16, 16], h_dim=5, width=2)
        >>> generator(torch.zeros(7, 5)).shape
        torch.Size([7, 3, 16, 16])
    """

    def __init__(self, *, v_shape: Sequence[int], h_dim: int = 100, width: int = 48) -> None:
        super().__init__()
        n = halvings(v_shape)
        if width < 1 or h_dim < 1:
            raise ConfigError(f"A generator needs width >= 1 and h_dim >= 1, not {width} and {h_dim}.")
        self.event_shape, self.h_dim = tuple(v_shape), h_dim
        convolutions = [nn.ConvTranspose2d(h_dim, width * 2**n, 4, bias=False)]
        for i in range(n):
            n_in = convolutions[-1].out_channels
            convolutions.append(nn.ConvTranspose2d(n_in, width * 2 ** (n - i), 4, stride=2, padding=1, bias=False))
        layers: list[nn.Module] = []
        for convolution in convolutions:
            layers += [convolution, BatchNorm2d(convolution.out_channels), nn.ReLU()]
        layers += [nn.ConvTranspose2d(2 * width, v_shape[0], 3, padding=1), nn.Tanh()]
        # the format of a convolution's output is its kernel's
        self.layers = normal_start(nn.Sequential(*layers)).to(memory_format=torch.channels_last)

    def forward(self, h: Tensor) -> Tensor:
        """Images v (B, C, H, W) of latents h (B, h_dim)."""
        return self.layers(h[:, :, None, None])
