"""Unadjusted Langevin dynamics, of a model or with noise that the caller draws."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat
from torch import Tensor, nn

from eblvm_lit.core.functional import grad
from eblvm_lit.core.tensors import sum_event
from eblvm_lit.energies.base import Energy, MarginalEnergy
from eblvm_lit.errors import ConfigError
from eblvm_lit.samplers.base import Sampler

__all__ = ["Langevin", "tensor_of"]


def tensor_of(module: nn.Module, device: torch.device | str) -> Tensor:
    """A tensor of the type and device that a module computes in.

    Args:
        module: Its first floating-point parameter is taken, or else such a buffer.
        device: Of a module without either, which computes in torch's default type.

    Example:
        >>> tensor_of(nn.Linear(2, 3).double(), "cpu").dtype, tensor_of(nn.ReLU(), "cpu").dtype
        (torch.float64, torch.float32)
    """
    tensors = (x for x in (*module.parameters(), *module.buffers()) if x.is_floating_point())
    return next(tensors, torch.empty(0, device=device)).detach()


class Langevin(Sampler):
    r"""Some steps of Langevin dynamics of one or several variables at once, with noise that is drawn outside.

    .. math:: x \leftarrow x - \tfrac a2 \nabla_x E(x) + s\, \epsilon, \quad \epsilon \sim N(0, I)

    With s = sqrt(a) its stationary distribution is exp(-E) up to O(a). VaGES refines latents with another s, mostly
    much smaller: then it descends the energy more than it samples (Bao et al. 2021, appendix G).

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

    def __init__(
        self, *, n_steps: NonNegativeInt, step_size: PositiveFloat, noise_std: NonNegativeFloat | None = None
    ) -> None:
        self.n_steps = n_steps
        self.step_size = step_size
        self.noise_std = math.sqrt(step_size) if noise_std is None else noise_std

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
        energy_grad = grad(energy, argnums=tuple(range(len(x))))
        for step in range(self.n_steps):
            x = self._moved(x, energy_grad(*x), noise, step)
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
        energy_grad = grad(energy, argnums=tuple(range(len(x))))
        ratio = x[0].new_zeros(len(x[0]))
        slopes = energy_grad(*x)
        for step in range(self.n_steps):
            x = self._moved(x, slopes, noise, step)
            last = slopes
            slopes = energy_grad(*x)
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
            generator: Source of all randomness, on the energy's device.
            low: Lower end of the box, a number or of a shape that broadcasts to that of one v.
            high: Its upper end.

        Returns:
            Shape (n, *event).

        Raises:
            ConfigError: For binary latents that cannot be summed out.
        """
        like = tensor_of(energy, generator.device)
        options = {"generator": generator, "dtype": like.dtype, "device": like.device}
        x: tuple[Tensor, ...] = (low + (high - low) * torch.rand((n, *energy.event_shape), **options),)
        total: Callable[..., Tensor]
        if isinstance(energy, MarginalEnergy):
            free_energy = energy.free_energy
            total = lambda v: free_energy(v).sum()  # noqa: E731
        elif energy.continuous:
            total = lambda v, h: energy.energy(v, h).sum()  # noqa: E731
            x = *x, torch.randn((n, energy.h_dim), **options)
        else:
            raise ConfigError(f"{type(energy).__name__} has binary latents, which Langevin dynamics cannot move.")
        one = Langevin(n_steps=1, step_size=self.step_size, noise_std=self.noise_std)
        for _ in range(self.n_steps):  # one step at a time, so that noise needs little memory
            x = one.run(total, x, tuple(one.noise(part, generator) for part in x))
        return x[0]
