"""The convolutional networks in the energy, the encoder and the generator of BiDVL (Kan et al. 2022)."""

from __future__ import annotations

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor, nn

from eblvm_lit.core.ranges import ImageShape
from eblvm_lit.networks.layers import BatchNorm2d, normal_start, spectrally_normalised
from eblvm_lit.networks.shapes import halvings

__all__ = ["BatchNormEncoder", "ConvGenerator", "SpectralConv"]


class SpectralConv(nn.Module):
    r"""A feature network of spectrally normalised 3x3 and strided 4x4 convolutions that reduce an image to one pixel.

    .. math:: [3{\times}3 \to 2^i e]\,[4{\times}4,\, \text{stride } 2 \to 2^i e], \; i = 0, \dots, n - 1; \quad
        [3{\times}3 \to 2^n e]\,[4{\times}4 \to 2^n e]

    with a leaky ReLU between consecutive convolutions and none after the last. The image has :math:`4 \cdot 2^n` pixels
    on a side. With e = 64 these are the networks of the published energies at 32, 64 and 128 pixels (Kan et al. 2022,
    code).

    Args:
        v_shape: The channels, height and width of the image.
        width: The number e of channels of the first convolution.
        negative_slope: The slope of the leaky ReLU below zero.

    Raises:
        ConfigError: If the image is not square with a side of 8, 16, 32, ... pixels.

    Example:
        >>> network = SpectralConv(v_shape=[3, 16, 16], width=2)
        >>> network.out_dim, network(torch.zeros(5, 3, 16, 16)).shape
        (8, torch.Size([5, 8]))
    """

    def __init__(self, *, v_shape: ImageShape, width: PositiveInt = 64, negative_slope: NonNegativeFloat = 0.1) -> None:
        super().__init__()
        n = halvings(v_shape)
        self.event_shape = tuple(v_shape)
        self.out_dim = width * 2**n
        layers: list[nn.Module] = []
        n_in = v_shape[0]
        for i in range(n + 1):
            n_out = width * 2**i
            layers += [nn.Conv2d(n_in, n_out, 3, padding=1), nn.LeakyReLU(negative_slope)]
            if i < n:
                layers += [nn.Conv2d(n_out, n_out, 4, stride=2, padding=1), nn.LeakyReLU(negative_slope)]
            n_in = n_out
        # The input of the last 4x4 convolution is 4x4, so it is written as a linear layer, 7 times as fast on a CPU.
        layers += [nn.Flatten(), nn.Linear(16 * n_in, n_in)]
        # A convolution returns its output in the memory format of its kernel, so it is enough to convert the kernels.
        self.layers = normal_start(nn.Sequential(*layers)).to(memory_format=torch.channels_last)
        spectrally_normalised(self.layers)

    def forward(self, v: Tensor) -> Tensor:
        """Compute the features, shape (B, out_dim), of images v (B, C_in, H, W)."""
        return self.layers(v)


class BatchNormEncoder(nn.Module):
    r"""A feature network with batch norm: a 3x3 convolution, then strided 4x4 convolutions that double the channels.

    .. math:: [3{\times}3 \to w]\,[4{\times}4,\, \text{stride } 2 \to 2^i w], \; i = 1, \dots, n

    A leaky ReLU follows each normalisation. The image has :math:`4 \cdot 2^n` pixels on a side, and there are
    :math:`16 \cdot 2^n w` features. With w = 48 these are the networks of the published encoders at 32, 64 and 128
    pixels (Kan et al. 2022, code).

    Args:
        v_shape: The channels, height and width of the image.
        width: The number w of channels of the first convolution.
        negative_slope: The slope of the leaky ReLU below zero.

    Raises:
        ConfigError: If the image is not square with a side of 8, 16, 32, ... pixels.

    Example:
        >>> network = BatchNormEncoder(v_shape=[3, 16, 16], width=2)
        >>> network.out_dim, network(torch.zeros(5, 3, 16, 16)).shape
        (128, torch.Size([5, 128]))
    """

    def __init__(self, *, v_shape: ImageShape, width: PositiveInt = 48, negative_slope: NonNegativeFloat = 0.2) -> None:
        super().__init__()
        n = halvings(v_shape)
        self.event_shape = tuple(v_shape)
        self.out_dim = 16 * width * 2**n
        convolutions = [nn.Conv2d(v_shape[0], width, 3, padding=1, bias=False)]
        widths = [width * 2**i for i in range(n)]
        convolutions += [nn.Conv2d(w, 2 * w, 4, stride=2, padding=1, bias=False) for w in widths]
        layers: list[nn.Module] = []
        for convolution in convolutions:
            layers += [convolution, BatchNorm2d(convolution.out_channels), nn.LeakyReLU(negative_slope)]
        # A convolution returns its output in the memory format of its kernel, so it is enough to convert the kernels.
        self.layers = normal_start(nn.Sequential(*layers)).to(memory_format=torch.channels_last)

    def forward(self, v: Tensor) -> Tensor:
        """Compute the features, shape (B, out_dim), of images v (B, C_in, H, W)."""
        return self.layers(v).flatten(1)


class ConvGenerator(nn.Module):
    r"""A generator of images from latents: transposed convolutions that halve the channels, with batch norm.

    .. math:: [4{\times}4 \to 2^n w]\,[4{\times}4,\, \text{stride } 2 \to 2^{n-i} w], \; i = 0, \dots, n - 1; \quad
        \tanh [3{\times}3 \to C]

    Batch normalisation and a ReLU follow each convolution but the last. The image has :math:`4 \cdot 2^n` pixels on a
    side and values in [-1, 1]. With w = 48 these are the published generators at 32, 64 and 128 pixels (Kan et al.
    2022, code).

    Args:
        v_shape: The channels, height and width of the image.
        h_dim: The number of latents.
        width: The number w; the first convolution has 2^n w channels.

    Raises:
        ConfigError: If the image is not square with a side of 8, 16, 32, ... pixels.

    Example:
        >>> generator = ConvGenerator(v_shape=[3, 16, 16], h_dim=5, width=2)
        >>> generator(torch.zeros(7, 5)).shape
        torch.Size([7, 3, 16, 16])
    """

    def __init__(self, *, v_shape: ImageShape, h_dim: PositiveInt = 100, width: PositiveInt = 48) -> None:
        super().__init__()
        n = halvings(v_shape)
        self.event_shape = tuple(v_shape)
        self.h_dim = h_dim
        convolutions = [nn.ConvTranspose2d(h_dim, width * 2**n, 4, bias=False)]
        for i in range(n):
            n_in = convolutions[-1].out_channels
            convolutions.append(nn.ConvTranspose2d(n_in, width * 2 ** (n - i), 4, stride=2, padding=1, bias=False))
        layers: list[nn.Module] = []
        for convolution in convolutions:
            layers += [convolution, BatchNorm2d(convolution.out_channels), nn.ReLU()]
        layers += [nn.ConvTranspose2d(2 * width, v_shape[0], 3, padding=1), nn.Tanh()]
        # A convolution returns its output in the memory format of its kernel, so it is enough to convert the kernels.
        self.layers = normal_start(nn.Sequential(*layers)).to(memory_format=torch.channels_last)

    def forward(self, h: Tensor) -> Tensor:
        """Generate images v (B, C, H, W) from latents h (B, h_dim)."""
        return self.layers(h[:, :, None, None])
