r"""A mixer of noised images and their noise level, for energies whose gradient denoises."""

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

SIDE = 4  # height and width of a square in pixels


class LevelGains(nn.Module):
    r"""Multiplicative gains for each level: a network of the scaled level c, with one output for each channel.

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
        """Compute the gains of each layer, each of shape (B, size), for c (B,)."""
        c = c.unsqueeze(1)
        phase = c * self.frequencies
        log_gains = self.second(silu(self.first(torch.cat([c, phase.sin(), phase.cos()], dim=1))))
        return log_gains.exp().split(self.sizes, dim=1)


class GainedBlock(nn.Module):
    r"""A residual block of two linear layers whose input has multiplicative gains: x + W_2 a(W_1 (gain x)).

    There is no normalisation, because its second derivatives would cost as much as the layers. W_2 starts at half
    of its usual size instead.

    Args:
        in_dim: The size C of x.
        width: The number of rows of W_1.

    Example:
        >>> GainedBlock(in_dim=3, width=4)(torch.zeros(5, 7, 3), torch.ones(5, 3)).shape
        torch.Size([5, 7, 3])
    """

    def __init__(self, *, in_dim: PositiveInt, width: PositiveInt) -> None:
        super().__init__()
        self.first = nn.Linear(in_dim, width)
        self.second = nn.Linear(width, in_dim)
        with torch.no_grad():
            self.second.weight.mul_(0.5)

    def forward(self, x: Tensor, gain: Tensor) -> Tensor:
        """Compute the block's output for x (B, *P, C), of P positions, and gains (B, C)."""
        return x + self.second(silu(self.first(x * gain.view(len(x), *(1,) * (x.dim() - 2), -1))))


class NoiseConditionalMixer(nn.Module):
    r"""A network of squares of 4 x 4 pixels: layers of each square alternate with layers that see the whole image.

    A convolution gives each square C channels. Each of the rounds then mixes the squares of the image by a dense block,
    which keeps a few numbers for each square, adds its result to all channels, and mixes the channels of each square.
    Almost all operations are products of large matrices, and layers that see the whole image learn how the parts of a
    centred image belong together in far fewer iterations than convolutions. The level enters by multiplicative gains;
    all activations are SiLU, because score matching differentiates twice. The blocks are those of the MLP-mixer
    (Tolstikhin et al. 2021, arXiv 2105.01601), but the squares are mixed for all channels together. The last layer
    starts at zero, so that an energy of the image f starts at its reference.

    Args:
        v_shape: The channels, height and width of the image.
        width: The number C of channels of each square.
        dense_width: The width of the dense blocks.
        n_rounds: The number of rounds.
        n_kept: The number of numbers that the dense blocks keep for each square.

    Raises:
        ConfigError: If the height or the width is not a multiple of 4.

    Example:
        >>> network = NoiseConditionalMixer(v_shape=[1, 8, 8], width=6, dense_width=5)
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
    ) -> None:
        super().__init__()
        self.v_shape = image_shape(v_shape, SIDE)
        channels, height, length = self.v_shape
        self.squares = (height // SIDE, length // SIDE)
        n_squares = math.prod(self.squares)
        n = n_squares * n_kept
        self.event_shape = (math.prod(self.v_shape) + 1,)
        self.out_dim = width + n
        self.gains = LevelGains(sizes=[*[n, width] * n_rounds, width])
        self.enter = nn.Conv2d(channels * SIDE**2, width, 3, padding=1)
        self.place = nn.Parameter(0.1 * torch.randn(n_squares, width))
        self.keep = nn.Linear(width, n_kept)
        self.mix_squares = nn.ModuleList(GainedBlock(in_dim=n, width=dense_width) for _ in range(n_rounds))
        self.spread = nn.ModuleList(nn.Linear(n_kept, width) for _ in range(n_rounds))
        self.mix_channels = nn.ModuleList(GainedBlock(in_dim=width, width=width) for _ in range(n_rounds))
        self.leave = nn.Conv2d(width, channels * SIDE**2, 3, padding=1)
        for parameter in self.leave.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the image f, shape (B, d), and the features g, shape (B, out_dim), for x = (y, c), (B, d + 1)."""
        y, c = split_level(x)
        *gains, last = self.gains(c)
        pixels = pixel_unshuffle(y.unflatten(1, self.v_shape), SIDE).contiguous(memory_format=torch.channels_last)
        squares = self.enter(pixels).movedim(1, 3).flatten(1, 2) + self.place
        whole = self.keep(squares).flatten(1)
        rounds = zip(self.mix_squares, self.spread, self.mix_channels, gains[::2], gains[1::2], strict=True)
        for mix_squares, spread, mix_channels, of_whole, of_squares in rounds:
            whole = mix_squares(whole, of_whole)
            squares = squares + spread(whole.unflatten(1, (squares.shape[1], -1)))
            squares = mix_channels(squares, of_squares)
        active = silu(squares * last.unsqueeze(1))
        image = pixel_shuffle(self.leave(active.unflatten(1, self.squares).movedim(3, 1)), SIDE).flatten(1)
        return image, torch.cat([active.mean(1), silu(whole)], dim=1)
