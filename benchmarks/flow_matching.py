"""Conditional flow matching with straight paths (Lipman et al. 2023, arXiv:2210.02747): loss, sampler and networks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, interpolate, pixel_shuffle, pixel_unshuffle, silu

Field = Callable[[Tensor, Tensor], Tensor]  # maps v (B, *event) and t (B,) to a velocity (B, *event)
# the time t is encoded by cosines and sines with the frequencies 1/2 to 32
ANGLES = 2 * math.pi * torch.logspace(-1, 5, 32, base=2)


def path(v0: Tensor, v1: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Return the point (1 - t) v0 + t v1 on the path from noise v0 to data v1 (B, *event), and its velocity v1 - v0."""
    t = t.view(-1, *[1] * (v1.dim() - 1))
    return (1 - t) * v0 + t * v1, v1 - v0


def matching_loss(field: Field, v1: Tensor, generator: torch.Generator) -> Tensor:
    """Compute the flow-matching loss of a velocity field u: the mean square of u(v_t, t) - (v1 - v0).

    The mean is over data v1 (B, *event), noise v0 ~ N(0, I) and times t ~ U(0, 1).
    """
    v0 = torch.empty_like(v1).normal_(generator=generator)
    t = v1.new_empty(len(v1)).uniform_(generator=generator)
    v_t, velocity = path(v0, v1, t)
    return (field(v_t, t) - velocity).square().mean()


@torch.no_grad()
def heun(field: Field, v: Tensor, n_steps: int = 25) -> Tensor:
    """Solve dv/dt = u(v, t) from t = 0 to t = 1 by Heun's method, for a velocity field u.

    The solution starts at noise v (B, *event), and each step evaluates the field twice.
    """
    size = 1 / n_steps
    t = v.new_zeros(len(v))
    for i in range(n_steps):
        first = field(v, t + i * size)
        v = v + size / 2 * (first + field(v + size * first, t + (i + 1) * size))
    return v


class Block(nn.Module):
    """A residual block of two layers that are modulated by the time t (FiLM: Perez et al. 2018).

    Args:
        layer: A function that makes a layer from its numbers of input and output channels.
        n_in: Number of input channels.
        n_out: Number of output channels.
    """

    def __init__(self, layer: Callable[[int, int], nn.Module], n_in: int, n_out: int) -> None:
        super().__init__()
        self.before = nn.GroupNorm(8, n_in)
        self.norm = nn.GroupNorm(8, n_out, affine=False)
        self.film = nn.Linear(2 * len(ANGLES), 2 * n_out)
        self.first = layer(n_in, n_out)
        self.second = layer(n_out, n_out)
        self.shortcut = nn.Identity() if n_in == n_out else layer(n_in, n_out)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angles = t.unsqueeze(1) * ANGLES.to(t)
        film = self.film(torch.cat([angles.cos(), angles.sin()], 1))
        scale, shift = film.view(*film.shape, *[1] * (x.dim() - 2)).chunk(2, 1)
        y = (1 + scale) * self.norm(self.first(silu(self.before(x)))) + shift
        return self.shortcut(x) + self.second(silu(y))


class FlowUNet(nn.Module):
    """A U-net with two resolutions, of which the finer one is a grid of squares of 2 x 2 pixels.

    On a grid of single pixels it would cost four times as much.

    Args:
        v_shape: The shape (C, H, W) of an image.
        width: Number of channels at the finer resolution.
    """

    def __init__(self, v_shape: Sequence[int], width: int = 64) -> None:
        super().__init__()
        n = 4 * v_shape[0]
        layer = partial(nn.Conv2d, kernel_size=3, padding=1)
        self.enter = layer(n, width)
        self.leave = layer(width, n)
        self.left = Block(layer, width, width)
        self.right = Block(layer, 3 * width, width)
        self.first = Block(layer, width, 2 * width)
        self.second = Block(layer, 2 * width, 2 * width)

    def forward(self, v: Tensor, t: Tensor) -> Tensor:
        left = self.left(self.enter(pixel_unshuffle(v, 2)), t)
        below = self.second(self.first(avg_pool2d(left, 2), t), t)
        both = torch.cat([left, interpolate(below, scale_factor=2)], 1)
        return pixel_shuffle(self.leave(self.right(both, t)), 2)
