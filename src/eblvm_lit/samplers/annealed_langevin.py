"""Annealed Langevin dynamics: Langevin dynamics at a falling temperature, with a denoising step at the end."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat
from torch import Tensor

from eblvm_lit.core.ranges import Temperature
from eblvm_lit.samplers.dynamics import Chains, Dynamics, FlatChains
from eblvm_lit.samplers.hmc import HMC, MoveNoise
from eblvm_lit.samplers.langevin import langevin_steps
from eblvm_lit.samplers.sample_noise import SampleNoise

__all__ = ["AnnealedLangevin"]

COLDEST = 1e-6  # replaces the temperature T = 0 in Metropolis steps, which divide the energy by T


class AnnealedLangevin(Dynamics):
    r"""Langevin dynamics at a decreasing temperature, followed by a denoising step.

    .. math:: x \leftarrow x - \tfrac12 \varepsilon^2 \nabla_x E(x) + \sqrt{T_t}\, \varepsilon\, \xi, \quad
        \xi \sim N(0, I); \qquad x \leftarrow x - \sigma_0^2 \nabla_x E(x) \text{ at the end}

    T stays at ``temperature`` for ``n_hot`` steps, falls towards 1 by equal factors in ``n_falling`` steps, stays at 1
    for ``n_held`` steps, and falls linearly from 1 to 0, both included, in ``n_cold`` steps. The temperature scales
    only the noise. The last step is the denoising of Saremi and Hyvarinen 2019 for a model of data with added noise of
    standard deviation sigma_0. The defaults are the published ones, with 2,700 steps. With ``temperature`` 1 and only
    hot steps, this is the walk-jump sampling of Saremi and Hyvarinen 2019. Reference: Li et al. 2019; Bao et al. 2020
    and 2021, code.

    Args:
        step_size: The step size epsilon.
        temperature: The temperature T at the beginning.
        n_hot: The number of steps at that temperature.
        n_falling: The number of steps in which T falls to 1.
        n_held: The number of steps at T = 1.
        n_cold: The number of steps from T = 1 to T = 0; a single one is at T = 1.
        denoise_std: The noise level sigma_0 of the denoising step; 0 for no denoising.
        n_leapfrog: 0 for the Langevin steps above. A larger value replaces each of them by a move of Hamiltonian Monte
            Carlo with this number of leapfrog steps. The distribution at T = 1 is then exactly the model's for every
            step size, and chains cannot diverge. With 1, a move is a Metropolis-adjusted Langevin step. The sampler's
            kind ``score`` has no energy and needs 0.

    Example:
        >>> langevin = AnnealedLangevin(step_size=0.5, n_hot=5, n_falling=20, n_cold=10, denoise_std=0.0)
        >>> noise = SampleNoise(0, range(4))
        >>> chains = Chains(lambda x: (x - 3).square().sum(1) / 2, (langevin.start((1,), noise),))
        >>> (end,) = langevin.end(chains, noise)
        >>> end.shape, langevin.n_steps
        (torch.Size([4, 1]), 35)
    """

    def __init__(
        self,
        *,
        step_size: PositiveFloat = 0.02,
        temperature: Temperature = 100.0,
        n_hot: NonNegativeInt = 500,
        n_falling: NonNegativeInt = 2000,
        n_held: NonNegativeInt = 0,
        n_cold: NonNegativeInt = 200,
        denoise_std: NonNegativeFloat = 0.1,
        n_leapfrog: NonNegativeInt = 0,
    ) -> None:
        self.step_size = step_size
        self.denoise_std = denoise_std
        self.n_leapfrog = n_leapfrog
        self.kinds = Dynamics.kinds if n_leapfrog else (*Dynamics.kinds, "score")
        falling = temperature ** (1 - torch.arange(n_falling, dtype=torch.float64) / max(n_falling, 1))
        self.temperatures = torch.cat(
            [
                torch.full((n_hot,), float(temperature), dtype=torch.float64),
                falling,
                torch.ones(n_held, dtype=torch.float64),
                torch.linspace(1, 0, n_cold, dtype=torch.float64),
            ]
        )

    @property
    def n_steps(self) -> int:
        """The number of steps, not counting the denoising step."""
        return len(self.temperatures)

    @property
    def stationary(self) -> range:
        """The steps at which converged chains sample the model: the second half of the steps at temperature T = 1."""
        at_one = (self.temperatures == 1).nonzero().flatten().tolist()
        return range(at_one[len(at_one) // 2], at_one[-1] + 1) if at_one else range(0)

    @property
    def settings(self) -> list[Any]:
        """The settings that determine the samples; their hash identifies cached samples."""
        return [self.step_size, self.temperatures, self.denoise_std, *([self.n_leapfrog] if self.n_leapfrog else [])]

    def steps(self, chains: Chains, noise: SampleNoise) -> Iterator[tuple[Tensor, ...]]:
        """Yield the chains' variables after each step; see :meth:`Dynamics.steps`."""
        if self.n_leapfrog:
            yield from self._adjusted_steps(chains, noise)
            return
        scales = [math.sqrt(temperature) * self.step_size for temperature in self.temperatures.tolist()]
        yield from langevin_steps(chains, noise, 0.5 * self.step_size**2, scales)

    def _adjusted_steps(self, chains: Chains, noise: SampleNoise) -> Iterator[tuple[Tensor, ...]]:
        """Yield the variables after each Hamiltonian move, which leaves exp(-E / T) invariant at temperature T."""
        flat = FlatChains(chains)
        hmc = HMC(n_leapfrog=self.n_leapfrog)
        x = flat.x
        here = None
        numbers = noise.steps(self.n_steps, x.shape[1], 1, dtype=x.dtype)
        for temperature, (xi, uniform) in zip(self.temperatures.clamp(min=COLDEST).tolist(), numbers, strict=True):
            known = None if here is None else (here[0] / temperature, here[1] / temperature)
            size = self.step_size * math.sqrt(temperature)
            drawn = MoveNoise(xi, uniform[:, 0])
            move = hmc.move(lambda x, t=temperature: flat.energies(x) / t, x, drawn, size, known)
            x = move.x
            here = (temperature * move.energy, temperature * move.slope)
            yield flat.parts(x)
