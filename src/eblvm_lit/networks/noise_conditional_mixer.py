r"""A network like the MLP-mixer that maps noised images and their noise levels to denoised images and features."""

from __future__ import annotations

import math

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn.functional import pixel_shuffle, pixel_unshuffle, silu

from eblvm_lit.core.noise_levels import split_level
from eblvm_lit.core.ranges import ImageShape, Sizes
from eblvm_lit.networks.shapes import image_shape

__all__ = ["GainedBlock", "LevelGains", "NoiseConditionalMixer"]

SIDE = 4  # height and width, in pixels, of the patches that the mixer layers combine across the image
FINE = 2  # height and width, in pixels, of the squares on which the final convolutions work, which add the details


class LevelGains(nn.Module):
    r"""A network that computes, from the scaled noise level c, a factor (gain) for each channel of each layer.

    .. math:: c \mapsto \exp(V a(U (c, \sin \omega c, \cos \omega c) + u) + b), \quad a(z) = z / (1 + e^{-z})

    The frequencies omega are 16 equally spaced numbers from 0.3 to 4. Gains are exponentials, because at little noise a
    network must amplify the noise in its input by s / sqrt(t). They start near 1.

    Args:
        sizes: The number of gains of each layer that has gains.
        width: The number of rows of U.

    Example:
        >>> [gains.shape for gains in LevelGains(sizes=[3, 4])(torch.zeros(5))]
        [torch.Size([5, 3]), torch.Size([5, 4])]
    """

    frequencies: Tensor

    def __init__(self, *, sizes: Sizes, width: PositiveInt = 64) -> None:
        super().__init__()
        self.sizes = list(sizes)
        self.register_buffer("frequencies", torch.linspace(0.3, 4.0, 16))
        self.first = nn.Linear(1 + 2 * len(self.frequencies), width)
        self.second = nn.Linear(width, sum(sizes))
        nn.init.zeros_(self.second.bias)
        with torch.no_grad():
            self.second.weight.mul_(0.3)

    def forward(self, c: Tensor) -> tuple[Tensor, ...]:
        """Compute the gains of each layer, each of shape (B, size), for scaled levels c (B,)."""
        c = c.unsqueeze(1)
        phase = c * self.frequencies
        log_gains = self.second(silu(self.first(torch.cat([c, phase.sin(), phase.cos()], dim=1))))
        return log_gains.exp().split(self.sizes, dim=1)


class GainedBlock(nn.Module):
    r"""A residual block of two linear layers that multiplies its input by gains: x + W_2 a(W_1 (gain x)).

    There is no normalisation, because its second derivatives would cost as much as the layers. W_2 starts at half
    of its usual size instead.

    Args:
        first: The layer W_1, linear or a convolution.
        second: The layer W_2.

    Example:
        >>> GainedBlock(nn.Linear(3, 4), nn.Linear(4, 3))(torch.zeros(5, 7, 3), torch.ones(5, 1, 3)).shape
        torch.Size([5, 7, 3])
    """

    def __init__(self, first: nn.Linear | nn.Conv2d, second: nn.Linear | nn.Conv2d) -> None:
        super().__init__()
        self.first = first
        self.second = second
        with torch.no_grad():
            self.second.weight.mul_(0.5)

    def forward(self, x: Tensor, gain: Tensor) -> Tensor:
        """Compute the block's output for x and gains whose shape broadcasts to that of x."""
        return x + self.second(silu(self.first(x * gain)))


def _linear_block(n: int, width: int) -> GainedBlock:
    return GainedBlock(nn.Linear(n, width), nn.Linear(width, n))


def _convolution(n_in: int, n_out: int) -> nn.Conv2d:
    return nn.Conv2d(n_in, n_out, 3, padding=1)


class NoiseConditionalMixer(nn.Module):
    r"""A denoising network of dense layers, which see the whole image, followed by convolutions, which add details.

    A convolution gives each square of 4 x 4 pixels C channels. Each of the rounds then mixes the squares of the image
    by a dense block, which keeps a few numbers for each square, adds its result to all channels, and mixes the channels
    of each square. Layers that see the whole image learn how the parts of a centred image belong together in far fewer
    iterations than convolutions, but strokes in their images are broken. So convolutional blocks on squares of 2 x 2
    pixels follow, which read the noised image and the channels. The level enters by multiplicative gains; all
    activations are SiLU, because score matching differentiates twice. The blocks are those of the MLP-mixer (Tolstikhin
    et al. 2021, arXiv 2105.01601), but the squares are mixed for all channels together. The last layer starts at zero,
    so that an energy of the image f starts at its reference.

    Args:
        v_shape: The channels, height and width of the image.
        width: The number C of channels of each square.
        dense_width: The width of the dense blocks.
        n_rounds: The number of rounds.
        n_kept: The number of numbers that the dense blocks keep for each square.
        fine_width: The number of channels of each square of 2 x 2 pixels.
        n_fine: The number of convolutional blocks.

    Raises:
        ConfigError: If the height or the width is not a multiple of 4.

    Example:
        >>> network = NoiseConditionalMixer(v_shape=[1, 8, 8], width=6, dense_width=5, fine_width=4)
        >>> image, features = network(torch.zeros(5, 65))
        >>> image.shape, features.shape
        (torch.Size([5, 64]), torch.Size([5, 38]))
    """

    def __init__(
        self,
        *,
        v_shape: ImageShape,
        width: PositiveInt = 128,
        dense_width: PositiveInt = 512,
        n_rounds: PositiveInt = 3,
        n_kept: PositiveInt = 8,
        fine_width: PositiveInt = 32,
        n_fine: PositiveInt = 2,
    ) -> None:
        super().__init__()
        self.v_shape = image_shape(v_shape, SIDE)
        channels, height, length = self.v_shape
        self.squares = (height // SIDE, length // SIDE)
        n_squares = math.prod(self.squares)
        n = n_squares * n_kept
        self.event_shape = (math.prod(self.v_shape) + 1,)
        self.out_dim = width + n
        self.n_rounds = n_rounds
        self.gains = LevelGains(sizes=[*[n, width] * n_rounds, width, *[fine_width] * n_fine])
        self.enter = _convolution(channels * SIDE**2, width)
        self.place = nn.Parameter(0.1 * torch.randn(n_squares, width))
        self.keep = nn.Linear(width, n_kept)
        self.mix_squares = nn.ModuleList(_linear_block(n, dense_width) for _ in range(n_rounds))
        self.spread = nn.ModuleList(nn.Linear(n_kept, width) for _ in range(n_rounds))
        self.mix_channels = nn.ModuleList(_linear_block(width, width) for _ in range(n_rounds))
        self.enter_fine = _convolution(channels * FINE**2, fine_width)
        self.refine = nn.Linear(width, fine_width * (SIDE // FINE) ** 2)
        self.draw = nn.ModuleList(
            GainedBlock(_convolution(fine_width, fine_width), _convolution(fine_width, fine_width))
            for _ in range(n_fine)
        )
        self.leave = _convolution(fine_width, channels * FINE**2)
        for parameter in self.leave.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Compute images f (B, d) and features g (B, out_dim) from noised images and their levels, x (B, d + 1)."""
        y, c = split_level(x)
        gains = self.gains(c)
        of_rounds = gains[: 2 * self.n_rounds]
        last, *of_fine = gains[2 * self.n_rounds :]
        pixels = y.unflatten(1, self.v_shape)
        squares = self.enter(_squares(pixels, SIDE)).movedim(1, 3).flatten(1, 2) + self.place
        whole = self.keep(squares).flatten(1)
        rounds = zip(self.mix_squares, self.spread, self.mix_channels, of_rounds[::2], of_rounds[1::2], strict=True)
        for mix_squares, spread, mix_channels, of_whole, of_squares in rounds:
            whole = mix_squares(whole, of_whole)
            squares = squares + spread(whole.unflatten(1, (squares.shape[1], -1)))
            squares = mix_channels(squares, of_squares.unsqueeze(1))
        active = silu(squares * last.unsqueeze(1))
        refined = self.refine(active).unflatten(1, self.squares).movedim(3, 1)
        fine = self.enter_fine(_squares(pixels, FINE)) + pixel_shuffle(refined, SIDE // FINE)
        for block, gain in zip(self.draw, of_fine, strict=True):
            fine = block(fine, gain[..., None, None])
        image = pixel_shuffle(self.leave(silu(fine)), FINE).flatten(1)
        return image, torch.cat([active.mean(1), silu(whole)], dim=1)


def _squares(pixels: Tensor, side: int) -> Tensor:
    # channels last in memory; vmap, by which metrics differentiate the score, refuses contiguous(memory_format=...)
    return pixel_unshuffle(pixels, side).movedim(1, 3).contiguous().movedim(3, 1)
