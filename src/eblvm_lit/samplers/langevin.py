"""Unadjusted Langevin dynamics, which draw samples from a model and also move the chains in training."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat
from torch import Tensor

from eblvm_lit.core.functional import grad
from eblvm_lit.core.tensors import sum_event
from eblvm_lit.energies.base import Energy
from eblvm_lit.samplers.dynamics import Chains, Dynamics
from eblvm_lit.samplers.energy_grad import energy_grad
from eblvm_lit.samplers.sample_noise import SampleNoise
from eblvm_lit.samplers.sampler import in_large_batches

__all__ = ["Langevin", "langevin_steps"]


class Langevin(Dynamics):
    r"""Unadjusted Langevin dynamics that move one or several variables by a fixed number of steps.

    .. math:: x \leftarrow x - \tfrac a2 \nabla_x E(x) + s\, \epsilon, \quad \epsilon \sim N(0, I)

    With s = sqrt(a) the stationary distribution is exp(-E) up to O(a). VaGES refines latents with another s, mostly a
    much smaller one; the steps then descend the energy more than they sample (Bao et al. 2021, appendix G).
    :meth:`sample` draws from a model. :meth:`run`, which training uses, moves chains of any total energy with noise
    that the caller draws.

    Args:
        n_steps: The number of steps.
        step_size: The step size a.
        noise_std: The standard deviation s of the noise; sqrt(a) if not given.

    Example:
        >>> langevin, x = Langevin(n_steps=200, step_size=0.1), torch.zeros(2000, 1)
        >>> noise = langevin.noise(x, torch.Generator().manual_seed(0))
        >>> (end,) = langevin.run(lambda x: (x - 3).square().sum() / 2, (x,), (noise,))
        >>> abs(end.mean() - 3) < 0.1, abs(end.std() - 1) < 0.1
        (tensor(True), tensor(True))
    """

    kinds = ("marginal", "joint", "posterior", "mean", "score")
    denoise_std = 0.0

    def __init__(
        self, *, n_steps: NonNegativeInt, step_size: PositiveFloat, noise_std: NonNegativeFloat | None = None
    ) -> None:
        self.n_steps = n_steps
        self.step_size = step_size
        self.noise_std = math.sqrt(step_size) if noise_std is None else noise_std
        self.box: tuple[Tensor | float, Tensor | float] = (0.0, 1.0)

    def noise(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Draw the noise of one variable for all steps, shape (n_steps, *x.shape)."""
        return torch.randn((self.n_steps, *x.shape), generator=generator, dtype=x.dtype, device=x.device)

    def run(
        self, energy: Callable[..., Tensor], start: tuple[Tensor, ...], noise: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """Run the chains and return the variables after the last step, detached.

        Args:
            energy: A function that maps the variables to the total energy of all chains, a scalar.
            start: The initial variables, each of any shape.
            noise: The noise of each variable, shape (n_steps, *shape of the variable).
        """
        x = tuple(part.detach() for part in start)
        slope = grad(energy, argnums=tuple(range(len(x))))
        for step in range(self.n_steps):
            x = self._moved(x, slope(*x), noise, step)
        return x

    def run_with_ratio(
        self, energy: Callable[..., Tensor], start: tuple[Tensor, ...], noise: tuple[Tensor, ...]
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        r"""Run the chains like :meth:`run`, and also return each chain's log-ratio of transition densities, shape (B,).

        It is the log density of the reverse transition minus that of the forward transition,

        .. math:: \log \frac{T(y \to x)}{T(x \to y)} = c^\top \epsilon - \tfrac12 \|c\|^2, \quad
            c = \tfrac{a}{2 s} (\nabla E(x) + \nabla E(y))

        for a step from x to y, summed over the steps. The formula follows because the noise :math:`c - \epsilon` leads
        from y back to x.
        """
        x = tuple(part.detach() for part in start)
        slope = grad(energy, argnums=tuple(range(len(x))))
        ratio = x[0].new_zeros(len(x[0]))
        slopes = slope(*x)
        for step in range(self.n_steps):
            x = self._moved(x, slopes, noise, step)
            last = slopes
            slopes = slope(*x)
            for g, g_next, eps in zip(last, slopes, noise, strict=True):
                c = 0.5 * self.step_size / self.noise_std * (g + g_next)
                ratio = ratio + sum_event(c * (eps[step] - 0.5 * c))
        return x, ratio.detach()

    def _moved(
        self, x: tuple[Tensor, ...], slopes: tuple[Tensor, ...], noise: tuple[Tensor, ...], step: int
    ) -> tuple[Tensor, ...]:
        """Compute the variables after one step from their values x and the energy gradients ``slopes`` at x."""
        moves = zip(x, slopes, noise, strict=True)
        moved = (part - 0.5 * self.step_size * g + self.noise_std * eps[step] for part, g, eps in moves)
        return tuple(part.detach() for part in moved)

    @property
    def settings(self) -> list[Any]:
        """The settings that determine the samples; their hash identifies cached samples."""
        return [type(self).__qualname__, self.n_steps, self.step_size, self.noise_std, *map(torch.as_tensor, self.box)]

    def within(self, low: Tensor | float, high: Tensor | float) -> Langevin:
        """Return a copy whose chains start at v drawn uniformly from a box.

        Args:
            low: The lower end of the box, a number or a tensor that broadcasts to the shape of one v.
            high: The upper end of the box, in the same form.
        """
        boxed = copy.copy(self)
        boxed.box = (low, high)
        return boxed

    def start(self, shape: tuple[int, ...], noise: SampleNoise, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """Draw the initial v uniformly from the box, by default [0, 1], shape (B, *shape)."""
        low, high = self.box
        return low + (high - low) * noise.uniform(shape, dtype=dtype)

    def start_latents(self, h_dim: int, noise: SampleNoise, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """Draw the initial latents of joint chains from N(0, I), shape (B, H)."""
        return noise((h_dim,), dtype=dtype)

    def steps(self, chains: Chains, noise: SampleNoise) -> Iterator[tuple[Tensor, ...]]:
        """Yield the chains' variables after each step; see :meth:`Dynamics.steps`."""
        return langevin_steps(chains, noise, 0.5 * self.step_size, [self.noise_std] * self.n_steps)

    def sample(
        self,
        energy: Energy,
        n: int,
        generator: torch.Generator,
        *,
        low: Tensor | float = 0.0,
        high: Tensor | float = 1.0,
    ) -> Tensor:
        """Run n independent chains and return their final v.

        The chains move v if the model has a free energy, and v and h together otherwise. They start at v uniform in a
        box and at h ~ N(0, I).

        Args:
            energy: The joint energy; the samples have its device and dtype.
            n: The number of chains.
            generator: The generator that draws the seed of all noise.
            low: The lower end of the box, a number or a tensor that broadcasts to the shape of one v.
            high: The upper end of the box, in the same form.

        Returns:
            The samples, shape (n, *event).

        Raises:
            ConfigError: If the model has binary latents and no free energy.
        """
        return in_large_batches(self.within(low, high), energy).sample(energy, n, generator)


def langevin_steps(
    chains: Chains, noise: SampleNoise, drift: float, scales: Sequence[float]
) -> Iterator[tuple[Tensor, ...]]:
    r"""Yield the chains' variables after each Langevin step.

    .. math:: x \leftarrow x - d\, \nabla_x E(x) + s_t\, \xi, \quad \xi \sim N(0, I)

    Args:
        chains: The B chains.
        noise: The noise of the B samples.
        drift: The factor d of the gradient.
        scales: The standard deviation s_t of the noise at each step.
    """
    x = tuple(part.detach() for part in chains.start)
    moving = chains.moving or (1.0,) * len(x)
    shapes = [part.shape[1:] for part in x]
    sizes = [shape.numel() for shape in shapes]
    drawn = noise.steps(len(scales), sum(sizes), dtype=x[0].dtype)
    for scale, (row, _) in zip(scales, drawn, strict=True):
        xi = tuple(part.unflatten(1, shape) for part, shape in zip(row.split(sizes, 1), shapes, strict=True))
        moves = zip(x, energy_grad(chains.total, x), xi, moving, strict=True)
        x = tuple((part + m * (scale * eps - drift * g)).detach() for part, g, eps, m in moves)
        yield x
