"""The residual networks in the energy, the encoder and the generator of BiDVL (Kan et al. 2022)."""

from __future__ import annotations

from itertools import pairwise

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, interpolate, relu

from eblvm_lit.core.ranges import ImageShape, Sizes
from eblvm_lit.errors import ConfigError
from eblvm_lit.networks.layers import BatchNorm2d, spectrally_normalised, xavier_start
from eblvm_lit.networks.shapes import image_shape

__all__ = ["ResidualGenerator", "SpectralResNet"]


def _convolution(n_in: int, n_out: int, size: int = 3, *, residual: bool = True) -> nn.Module:
    return xavier_start(nn.Conv2d(n_in, n_out, size, padding=size // 2), residual=residual)


class _DownBlock(nn.Module):
    """A residual block of two convolutions, each after a ReLU; it halves the resolution if ``down`` is true."""

    def __init__(self, n_in: int, n_out: int, *, down: bool, rectified_shortcut: bool) -> None:
        super().__init__()
        self.first = _convolution(n_in, n_in)
        self.second = _convolution(n_in, n_out)
        changes = n_in != n_out or down
        self.shortcut = _convolution(n_in, n_out, 1, residual=False) if changes else nn.Identity()
        self.down = down
        self.rectified_shortcut = rectified_shortcut

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(relu(self.first(relu(x))))
        x = relu(x) if self.rectified_shortcut else x
        # Average pooling commutes with the shortcut's 1x1 convolution. Pooling first quarters the convolution's cost.
        return avg_pool2d(y, 2) + self.shortcut(avg_pool2d(x, 2)) if self.down else y + self.shortcut(x)


class _FirstBlock(nn.Module):
    """The first residual block, which halves the resolution: two convolutions with a ReLU between them."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.first = _convolution(n_in, n_out)
        self.second = _convolution(n_out, n_out)
        self.shortcut = _convolution(n_in, n_out, 1, residual=False)

    def forward(self, v: Tensor) -> Tensor:
        return avg_pool2d(self.second(relu(self.first(v))), 2) + self.shortcut(avg_pool2d(v, 2))


class SpectralResNet(nn.Module):
    r"""A feature network: spectrally normalised residual blocks, followed by a ReLU and a sum over all pixels.

    .. math:: x \mapsto P(w_2 * a(w_1 * a(x))) + w_0 * P(x), \quad a = \max(0, \cdot)

    P averages 2x2 pixels in the first ``n_down`` blocks, which halves the resolution, and is the identity elsewhere.
    w_0 is the identity where neither the channels nor the resolution change. The first block lacks the inner a of
    :math:`w_1 * a(x)`. Published sizes (Kan et al. 2022, code, after Miyato et al. 2018): at 32 pixels the widths 128,
    128, 128, 128, with two blocks that halve; at 128 pixels the widths 64, 128, 256, 512, 1024, 1024, with five.

    Args:
        v_shape: The channels, height and width of the image.
        widths: The number of output channels of each block.
        n_down: The number of blocks, counted from the first, that halve the resolution.
        rectified_shortcut: Whether the shortcuts start from a(x). In the code of Kan et al. 2022 the ReLU works in
            place and overwrites the input of each block but the first, so the published numbers of residual networks
            were obtained this way. In the usual block, and that of Miyato et al. 2018, the shortcuts start from x.

    Raises:
        ConfigError: If the height or the width is not divisible by 2^n_down.

    Example:
        >>> network = SpectralResNet(v_shape=[3, 16, 16], widths=[4, 6, 6], n_down=2)
        >>> network.out_dim, network(torch.zeros(5, 3, 16, 16)).shape
        (6, torch.Size([5, 6]))
    """

    def __init__(
        self,
        *,
        v_shape: ImageShape,
        widths: Sizes = (128, 128, 128, 128),
        n_down: NonNegativeInt = 2,
        rectified_shortcut: bool = False,
    ) -> None:
        super().__init__()
        self.event_shape = image_shape(v_shape, 2**n_down)
        self.out_dim = widths[-1]
        blocks: list[nn.Module] = [_FirstBlock(v_shape[0], widths[0])]
        for i, (n_in, n_out) in enumerate(pairwise(widths), start=1):
            blocks.append(_DownBlock(n_in, n_out, down=i < n_down, rectified_shortcut=rectified_shortcut))
        # A convolution returns its output in the memory format of its kernel, so it is enough to convert the kernels.
        self.blocks = nn.Sequential(*blocks).to(memory_format=torch.channels_last)
        spectrally_normalised(self.blocks)

    def forward(self, v: Tensor) -> Tensor:
        """Compute the features, shape (B, out_dim), of images v (B, C_in, H, W)."""
        return relu(self.blocks(v)).sum((2, 3))


def _double(x: Tensor) -> Tensor:
    return interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)


class _UpBlock(nn.Module):
    """A residual block that doubles the resolution: two convolutions, each after batch norm and a ReLU."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.first_norm = BatchNorm2d(n_in)
        self.second_norm = BatchNorm2d(n_out)
        self.first = _convolution(n_in, n_out)
        self.second = _convolution(n_out, n_out)
        self.shortcut = _convolution(n_in, n_out, 1, residual=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(_double(relu(self.first_norm(x))))
        y = self.second(relu(self.second_norm(y)))
        # Bilinear upsampling commutes with the shortcut's 1x1 convolution. Upsampling last quarters its cost.
        return y + _double(self.shortcut(x))


class ResidualGenerator(nn.Module):
    r"""A generator: a linear map of latents to 4x4 pixels, residual blocks that double the size, and a convolution.

    .. math:: x \mapsto w_2 * a(w_1 * U a(x)) + w_0 * U x, \quad a = \max(0, \mathrm{BN}(\cdot))

    The formula is that of one block, in which U doubles the resolution bilinearly. The images have values in [-1, 1].
    Published widths (Kan et al. 2022, code, after Miyato et al. 2018): 256, 256, 256, 256 at 32 pixels, and 1024, 1024,
    512, 256, 128, 64 at 128 pixels.

    Args:
        v_shape: The channels, height and width of the image.
        h_dim: The number of latents.
        widths: The number of channels at 4x4 pixels, followed by that of each block's output.

    Raises:
        ConfigError: If the image's size is not the one that the number of widths produces.

    Example:
        >>> generator = ResidualGenerator(v_shape=[3, 16, 16], h_dim=5, widths=[4, 4, 2])
        >>> generator(torch.zeros(7, 5)).shape
        torch.Size([7, 3, 16, 16])
    """

    def __init__(self, *, v_shape: ImageShape, h_dim: PositiveInt = 128, widths: Sizes = (256, 256, 256, 256)) -> None:
        super().__init__()
        side = 4 * 2 ** (len(widths) - 1)
        self.event_shape = image_shape(v_shape, 1)
        self.h_dim = h_dim
        self.width = widths[0]
        if self.event_shape[1:] != (side, side):
            raise ConfigError(
                f"{len(widths)} widths make images of {side} x {side} pixels, and v_shape is {list(v_shape)}: "
                "give one width more for each doubling."
            )
        self.linear = xavier_start(nn.Linear(h_dim, 16 * widths[0]))
        self.blocks = nn.Sequential(*(_UpBlock(n_in, n_out) for n_in, n_out in pairwise(widths)))
        self.norm = BatchNorm2d(widths[-1])
        self.last = _convolution(widths[-1], v_shape[0], residual=False)
        # A convolution returns its output in the memory format of its kernel, so it is enough to convert the kernels.
        self.to(memory_format=torch.channels_last)

    def forward(self, h: Tensor) -> Tensor:
        """Generate images v (B, C, H, W) from latents h (B, h_dim)."""
        x = self.linear(h).unflatten(-1, (self.width, 4, 4))
        return torch.tanh(self.last(relu(self.norm(self.blocks(x)))))
