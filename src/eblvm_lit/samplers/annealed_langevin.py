"""Annealed Langevin dynamics: Langevin dynamics at a falling temperature, and a denoising step at the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from eblvm_lit.errors import ConfigError
from eblvm_lit.samplers.energy_grad import CapturedGrad, energy_grad
from eblvm_lit.samplers.sample_noise import SampleNoise

__all__ = ["AnnealedLangevin", "Chains"]

CHUNK = 2**22  # random numbers drawn at a time: few calls, little memory
LARGEST = 1e6  # larger values mean that the chains diverge


class Chains(NamedTuple):
    """Chains that run together.

    Attributes:
        energy: Total energy of all chains, a scalar function of the variables.
        start: The variables, each of shape (B, *its shape).
        moving: Factors of drift and noise of each variable, for example 0 where a pixel is kept; None: all move.
        denoised: Whether the last step moves each variable; None: all of them. Latents carry no data noise.
    """

    energy: Callable[..., Tensor]
    start: tuple[Tensor, ...]
    moving: tuple[Tensor | float, ...] | None = None
    denoised: tuple[bool, ...] | None = None


class AnnealedLangevin:
    r"""Langevin dynamics whose temperature falls, and a last step that removes the data noise.

    .. math:: x \leftarrow x - \tfrac12 \varepsilon^2 \nabla_x E(x) + \sqrt{T_t}\, \varepsilon\, \xi, \quad
        \xi \sim N(0, I); \qquad x \leftarrow x - \sigma_0^2 \nabla_x E(x) \text{ at the end}

    T stays at ``temperature`` for ``n_hot`` steps, falls towards 1 by equal factors in ``n_falling``, and then linearly
    from 1 to 0, both included, in ``n_cold``. The temperature scales the noise alone. The last step is the denoising of
    Saremi and Hyvarinen 2019 for a model of data with noise of scale sigma_0. The defaults are the published ones,
    2,700 steps.
    Reference: Li et al. 2019; Bao et al. 2020 and 2021, code.

    Args:
        step_size: epsilon.
        temperature: T at the beginning.
        n_hot: Steps at that temperature.
        n_falling: Steps down to T = 1.
        n_cold: Steps from T = 1 to T = 0; a single one is at T = 1.
        denoise_std: sigma_0; 0 for no such step.
        capture: On a GPU, whether the gradient is captured as a CUDA graph, once for all steps of a batch.

    Example:
        >>> langevin = AnnealedLangevin(step_size=0.5, n_hot=5, n_falling=20, n_cold=10, denoise_std=0.0)
        >>> noise = SampleNoise(0, range(4))
        >>> chains = Chains(lambda x: (x - 3).square().sum() / 2, (langevin.start((1,), noise),))
        >>> (end,) = langevin.run(chains, noise)
        >>> end.shape, langevin.n_steps
        (torch.Size([4, 1]), 35)
    """

    def __init__(
        self,
        *,
        step_size: float = 0.02,
        temperature: float = 100.0,
        n_hot: int = 500,
        n_falling: int = 2000,
        n_cold: int = 200,
        denoise_std: float = 0.1,
        capture: bool = False,
    ) -> None:
        self.step_size, self.denoise_std, self.capture = step_size, denoise_std, capture
        falling = temperature ** (1 - torch.arange(n_falling, dtype=torch.float64) / max(n_falling, 1))
        self.temperatures = torch.cat(
            [
                torch.full((n_hot,), float(temperature), dtype=torch.float64),
                falling,
                torch.linspace(1, 0, n_cold, dtype=torch.float64),
            ]
        )

    @property
    def n_steps(self) -> int:
        """Number of steps, without the last one."""
        return len(self.temperatures)

    def start(self, shape: tuple[int, ...], noise: SampleNoise, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """Where a variable begins: 0.5 + N(0, I), shape (B, *shape)."""
        return 0.5 + noise(shape, dtype=dtype)

    def trajectory(self, chains: Chains, noise: SampleNoise) -> Iterator[tuple[Tensor, ...]]:
        """The variables after each of the :attr:`n_steps` steps, and after the denoising step, if there is one.

        Args:
            chains: B chains.
            noise: Of B samples.
        """
        x = tuple(part.detach() for part in chains.start)
        moving, denoised = chains.moving or (1.0,) * len(x), chains.denoised or (True,) * len(x)
        gradient = CapturedGrad(chains.energy, x) if self.capture and x[0].is_cuda else energy_grad
        drift = 0.5 * self.step_size**2
        for temperature, xi in zip(self.temperatures.tolist(), self._noise(x, noise), strict=True):
            scale = math.sqrt(temperature) * self.step_size
            moves = zip(x, gradient(chains.energy, x), xi, moving, strict=True)
            x = tuple((part + m * (scale * eps - drift * g)).detach() for part, g, eps, m in moves)
            yield x
        if self.denoise_std > 0:
            moves = zip(x, gradient(chains.energy, x), moving, denoised, strict=True)
            x = tuple((part - m * self.denoise_std**2 * g).detach() if yes else part for part, g, m, yes in moves)
            yield x

    def _noise(self, x: tuple[Tensor, ...], noise: SampleNoise) -> Iterator[tuple[Tensor, ...]]:
        """Noise of every step, drawn in pieces whose length does not depend on the batch size."""
        shapes = [part.shape[1:] for part in x]
        sizes = [shape.numel() for shape in shapes]
        length = max(1, min(50, CHUNK // (64 * sum(sizes))))
        for first in range(0, self.n_steps, length):
            piece = noise((min(length, self.n_steps - first), sum(sizes)), dtype=x[0].dtype)
            for row in piece.unbind(1):
                yield tuple(part.unflatten(1, shape) for part, shape in zip(row.split(sizes, 1), shapes, strict=True))

    def run(
        self, chains: Chains, noise: SampleNoise, *, on_step: Callable[[int], None] | None = None
    ) -> tuple[Tensor, ...]:
        """The variables at the end of the trajectory.

        Args:
            chains: B chains.
            noise: Of B samples.
            on_step: Called with B after each of the :attr:`n_steps` steps.

        Raises:
            ConfigError: If the chains diverge.
        """
        end = chains.start
        for step, x in enumerate(self.trajectory(chains, noise)):
            end = x
            if on_step is not None and step < self.n_steps:
                on_step(len(noise))
        if not all(bool((x.abs() < LARGEST).all()) for x in end):  # also false for NaN
            raise ConfigError(
                "Annealed Langevin dynamics diverge: use a smaller step_size, or a model that is trained longer."
            )
        return end
