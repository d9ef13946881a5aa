"""Parallel tempering: replicas of each chain at several temperatures that exchange their states."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from eblvm_lit.core.ranges import Temperature
from eblvm_lit.samplers.dynamics import Chains, Dynamics, FlatChains
from eblvm_lit.samplers.hmc import HMC, MoveNoise
from eblvm_lit.samplers.sample_noise import SampleNoise

__all__ = ["ParallelTempering"]


class ParallelTempering(Dynamics):
    r"""Dynamics of replicas that exchange states with their neighbours, at temperatures :math:`1 = T_1 < \dots < T_K`.

    In each step every replica first makes one Hamiltonian move that leaves :math:`e^{-E / T_k}` invariant, with step
    size :math:`\epsilon \sqrt{T_k}`. Then the pairs (1, 2), (3, 4), ... or, in every other step, (2, 3), (4, 5), ...
    exchange their states with probability

    .. math:: \min\bigl(1, \exp((1/T_k - 1/T_{k+1}) (E(x_k) - E(x_{k+1})))\bigr)

    Both leave the joint distribution of all replicas invariant. The replicas at T = 1 are the samples; they have the
    model's distribution for every step size. Hot replicas cross between modes. The temperatures form a geometric
    sequence. Reference: Geyer 1991; Okabe et al. 2001 and Syed et al. 2022 for the order of the exchanges.

    Args:
        n_steps: The number of steps.
        step_size: The step size epsilon at T = 1.
        temperature: The highest temperature T_K.
        n_temperatures: The number K of temperatures.
        n_leapfrog: The number of leapfrog steps of a move; 1 for the Metropolis-adjusted Langevin algorithm.
        denoise_std: See :class:`~eblvm_lit.samplers.dynamics.Dynamics`.

    Example:
        >>> two_modes = lambda x: 20 * (x.abs() - 1).square().sum(1)
        >>> tempering, noise = ParallelTempering(n_steps=150, step_size=0.3), SampleNoise(0, range(500))
        >>> chains = Chains(two_modes, (torch.ones(500, 1),))
        >>> (x,) = tempering.end(chains, noise)
        >>> bool(abs((x > 0).double().mean() - 0.5) < 0.07)
        True
    """

    def __init__(
        self,
        *,
        n_steps: PositiveInt = 1000,
        step_size: PositiveFloat = 0.1,
        temperature: Temperature = 30.0,
        n_temperatures: PositiveInt = 6,
        n_leapfrog: PositiveInt = 1,
        denoise_std: NonNegativeFloat = 0.0,
    ) -> None:
        self.n_steps = n_steps
        self.step_size = step_size
        self.denoise_std = denoise_std
        self.temperature = temperature
        self.n_temperatures = n_temperatures
        self.n_leapfrog = n_leapfrog

    def steps(self, chains: Chains, noise: SampleNoise) -> Iterator[tuple[Tensor, ...]]:
        """Yield the variables of the replicas at T = 1 after each step; see :meth:`Dynamics.steps`."""
        k = self.n_temperatures
        b = len(noise)
        flat = FlatChains(chains, self.n_temperatures)
        x = flat.x
        hmc = HMC(n_leapfrog=self.n_leapfrog)
        betas = self.temperature ** -torch.linspace(0, 1, k, dtype=x.dtype, device=x.device)
        beta = betas.repeat_interleave(b)
        size = (self.step_size / beta.sqrt()).unsqueeze(1)
        here = None
        drawn = noise.steps(self.n_steps, k * x.shape[1], 2 * k, dtype=x.dtype)
        for step, (normal, uniform) in enumerate(drawn):
            momentum = normal.unflatten(1, (k, -1)).transpose(0, 1).flatten(0, 1)
            moving, exchanging = uniform.unflatten(1, (2, k)).permute(1, 2, 0)
            move = hmc.move(lambda x: beta * flat.energies(x), x, MoveNoise(momentum, moving.flatten()), size, here)
            energy = move.energy / beta
            slope = move.slope / beta.unsqueeze(1)
            rows = self._exchanged(betas, energy.view(k, b), exchanging, first=step % 2).flatten()
            x = move.x[rows]
            here = (beta * energy[rows], beta.unsqueeze(1) * slope[rows])
            yield flat.parts(x[:b])

    @staticmethod
    def _exchanged(betas: Tensor, energy: Tensor, uniform: Tensor, *, first: int) -> Tensor:
        """Compute for each replica the index of the replica whose state it receives in the exchanges, shape (K, B)."""
        k, b = energy.shape
        rows = torch.arange(k * b, device=energy.device).view(k, b)
        cold = slice(first, k - 1, 2)
        hot = slice(first + 1, k, 2)
        log_ratio = (betas[cold] - betas[hot]).unsqueeze(1) * (energy[cold] - energy[hot])
        taken = uniform[cold].log() < log_ratio
        exchanged = rows.clone()
        exchanged[cold] = rows[hot].where(taken, rows[cold])
        exchanged[hot] = rows[cold].where(taken, rows[hot])
        return exchanged
