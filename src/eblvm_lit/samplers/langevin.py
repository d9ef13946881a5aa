"""Unadjusted Langevin dynamics: samples of a model, and steps with noise that the caller draws, as training takes."""

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
    r"""Moves chains in some steps of Langevin dynamics, of one or several variables at once.

    .. math:: x \leftarrow x - \tfrac a2 \nabla_x E(x) + s\, \epsilon, \quad \epsilon \sim N(0, I)

    With s = sqrt(a) its stationary distribution is exp(-E) up to O(a). VaGES refines latents with another s, mostly
    much smaller: then it descends the energy more than it samples (Bao et al. 2021, appendix G). :meth:`sample` draws
    from a model; :meth:`run` moves chains of any total energy with noise that is drawn outside, as training does.

    Args:
        n_steps: Number of steps.
        step_size: a.
        noise_std: s; sqrt(a) if not given.

    Example:
        >>> langevin, x = Langevin(n_steps=500, step_size=0.1), torch.zeros(2000, 1)
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
        """Noise of one variable, shape (n_steps, *x.shape)."""
        return torch.randn((self.n_steps, *x.shape), generator=generator, dtype=x.dtype, device=x.device)

    def run(
        self, energy: Callable[..., Tensor], start: tuple[Tensor, ...], noise: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """Where the chains are after the last step; nothing is differentiated through them.

        Args:
            energy: Total energy of all chains, a scalar, of the variables.
            start: The variables; each of any shape.
            noise: Of each variable, shape (n_steps, *shape of the variable).
        """
        x = tuple(part.detach() for part in start)
        slope = grad(energy, argnums=tuple(range(len(x))))
        for step in range(self.n_steps):
            x = self._moved(x, slope(*x), noise, step)
        return x

    def run_with_ratio(
        self, energy: Callable[..., Tensor], start: tuple[Tensor, ...], noise: tuple[Tensor, ...]
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        r"""As :meth:`run`, and the log-ratio of each chain's transition densities back and forth, shape (B,).

        .. math:: \log \frac{T(y \to x)}{T(x \to y)} = c^\top \epsilon - \tfrac12 \|c\|^2, \quad
            c = \tfrac{a}{2 s} (\nabla E(x) + \nabla E(y))

        for a step from x to y, and summed over the steps: from y, noise :math:`c - \epsilon` leads back to x.
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
        """Where a step leads, of the gradients at x."""
        moves = zip(x, slopes, noise, strict=True)
        moved = (part - 0.5 * self.step_size * g + self.noise_std * eps[step] for part, g, eps in moves)
        return tuple(part.detach() for part in moved)

    @property
    def settings(self) -> list[Any]:
        """What samples depend on."""
        return [type(self).__qualname__, self.n_steps, self.step_size, self.noise_std, *map(torch.as_tensor, self.box)]

    def within(self, low: Tensor | float, high: Tensor | float) -> Langevin:
        """The same steps of chains that start at v uniform in a box, whose ends broadcast to the shape of one v."""
        boxed = copy.copy(self)
        boxed.box = (low, high)
        return boxed

    def start(self, shape: tuple[int, ...], noise: SampleNoise, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """Where v begins: uniform in the box, shape (B, *shape)."""
        low, high = self.box
        return low + (high - low) * noise.uniform(shape, dtype=dtype)

    def start_latents(self, h_dim: int, noise: SampleNoise, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """Where latents begin that move together with v: standard normal, shape (B, H)."""
        return noise((h_dim,), dtype=dtype)

    def steps(self, chains: Chains, noise: SampleNoise) -> Iterator[tuple[Tensor, ...]]:
        """The variables after each step; see :meth:`Dynamics.steps`."""
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
        """The last v of n independent chains of v, or of v and h together where the model has no free energy.

        Chains start at v uniform in a box and h standard normal.

        Args:
            energy: The model; its device and type are those of the samples.
            n: Number of chains.
            generator: Source of the seed of all noise.
            low: Lower end of the box, a number or of a shape that broadcasts to that of one v.
            high: Its upper end.

        Returns:
            Shape (n, *event).

        Raises:
            ConfigError: For binary latents that cannot be summed out.
        """
        return in_large_batches(self.within(low, high), energy).sample(energy, n, generator)


def langevin_steps(
    chains: Chains, noise: SampleNoise, drift: float, scales: Sequence[float]
) -> Iterator[tuple[Tensor, ...]]:
    r"""The variables after each step :math:`x \leftarrow x - d\, \nabla_x E(x) + s_t\, \xi`.

    Args:
        chains: B chains.
        noise: Of B samples.
        drift: d.
        scales: s_t of each step.
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
