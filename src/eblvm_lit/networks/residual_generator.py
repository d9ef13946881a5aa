"""The residual generator of doubly variational learning."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, relu

from eblvm_lit.errors import ConfigError
from eblvm_lit.networks.batch_norm import BatchNorm2d
from eblvm_lit.networks.initialisation import xavier_start
from eblvm_lit.networks.shapes import image_shape

__all__ = ["ResidualGenerator"]


def _convolution(n_in: int, n_out: int, size: int = 3, *, residual: bool = True) -> nn.Module:
    return xavier_start(nn.Conv2d(n_in, n_out, size, padding=size // 2), residual=residual)


def _double(x: Tensor) -> Tensor:
    return interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)


class _Block(nn.Module):
    """Two convolutions with batch normalisation and a rectifier before each, at twice the resolution."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.first_norm, self.second_norm = BatchNorm2d(n_in), BatchNorm2d(n_out)
        self.first, self.second = _convolution(n_in, n_out), _convolution(n_out, n_out)
        self.shortcut = _convolution(n_in, n_out, 1, residual=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(_double(relu(self.first_norm(x))))
        y = self.second(relu(self.second_norm(y)))
        # a 1x1 convolution of doubled pixels is the doubled one of the pixels, for a quarter of the products
        return y + _double(self.shortcut(x))


class ResidualGenerator(nn.Module):
    r"""Latents to images by a linear map to 4x4 pixels, residual blocks that double them, and a 3x3 convolution.

    .. math:: x \mapsto w_2 * a(w_1 * U a(x)) + w_0 * U x, \quad a = \max(0, \mathrm{BN}(\cdot))

    U doubles the resolution bilinearly. The values are in [-1, 1]. Published (Kan et al. 2022, code, after Miyato et
    al. 2018) with widths 256, 256, 256, 256 at 32 pixels, and 1024, 1024, 512, 256, 128, 64 at 128.

    Args:
        v_shape: Channels, height and width of the image.
        h_dim: Number of latents.
        widths: Channels at 4x4 pixels, then of each block's output.

    Raises:
        ConfigError: For an image of another size than the widths make, or a size below one.

    Example:
        >>> generator = ResidualGenerator(v_shape=[3, 16, 16], h_dim=5, widths=[4, 4, 2])
        >>> generator(torch.zeros(7, 5)).shape
        torch.Size([7, 3, 16, 16])
    """

    def __init__(
        self, *, v_shape: Sequence[int], h_dim: int = 128, widths: Sequence[int] = (256, 256, 256, 256)
    ) -> None:
        super().__init__()
        if not widths or min([h_dim, *widths]) < 1:
            raise ConfigError(f"A generator needs h_dim >= 1 and widths >= 1, not {h_dim} and {list(widths)}.")
        side = 4 * 2 ** (len(widths) - 1)
        self.event_shape, self.h_dim, self.width = image_shape(v_shape, 1), h_dim, widths[0]
        if self.event_shape[1:] != (side, side):
            raise ConfigError(
                f"{len(widths)} widths make images of {side} x {side} pixels, and v_shape is {list(v_shape)}: "
                "give one width more for each doubling."
            )
        self.linear = xavier_start(nn.Linear(h_dim, 16 * widths[0]))
        self.blocks = nn.Sequential(*(_Block(n_in, n_out) for n_in, n_out in pairwise(widths)))
        self.norm = BatchNorm2d(widths[-1])
        self.last = _convolution(widths[-1], v_shape[0], residual=False)
        # the format of a convolution's output is its kernel's
        self.to(memory_format=torch.channels_last)

    def forward(self, h: Tensor) -> Tensor:
        """Images v (B, C, H, W) of latents h (B, h_dim)."""
        x = self.linear(h).unflatten(-1, (self.width, 4, 4))
        return torch.tanh(self.last(relu(self.norm(self.blocks(x)))))
