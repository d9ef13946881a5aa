"""Hamiltonian Monte Carlo with a Metropolis step; one leapfrog step is a Metropolis-adjusted Langevin move."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from eblvm_lit.core.functional import grad, plain_autograd
from eblvm_lit.core.ranges import Fraction
from eblvm_lit.samplers.energy_grad import unrounded

__all__ = ["HMC", "Move", "MoveNoise"]

RowEnergy = Callable[[Tensor], Tensor]  # maps x (B, D) to U (B,), row by row


class MoveNoise(NamedTuple):
    """What a move draws: momenta (B, D), and uniform numbers (B,) that decide on acceptance."""

    momentum: Tensor
    uniform: Tensor


class Move(NamedTuple):
    """Where chains are after a move (B, D), their probabilities of acceptance (B,), and U (B,) and its slope there."""

    x: Tensor
    acceptance: Tensor
    energy: Tensor
    slope: Tensor


class HMC:
    r"""One move of Hamiltonian Monte Carlo, which leaves :math:`e^{-U}` invariant whatever its step size.

    From x and a fresh momentum :math:`p \sim N(0, I)`, L leapfrog steps of size :math:`\epsilon`,

    .. math:: p \leftarrow p - \tfrac\epsilon2 \nabla U(x), \quad x \leftarrow x + \epsilon p, \quad
        p \leftarrow p - \tfrac\epsilon2 \nabla U(x),

    lead to (x', p'), which is accepted with probability :math:`\min(1, e^{H(x, p) - H(x', p')})`,
    :math:`H(x, p) = U(x) + \tfrac12 |p|^2`. With L = 1 the proposal is that of Langevin dynamics, and the move is the
    Metropolis-adjusted Langevin algorithm. Where autocast rounds U and its slope, acceptance is by U without rounding.
    Leapfrog steps along any function of x keep volumes and can be reversed, so that moves with rounded slopes still
    leave the distribution invariant. Reference: Neal 2011, arXiv 1206.1901.

    Args:
        n_leapfrog: L.
        step_size: epsilon at first, in the units of x.
        target_acceptance: The mean acceptance that :meth:`adapt` steers to.

    Example:
        >>> hmc, x, g = HMC(n_leapfrog=5, step_size=0.3), torch.zeros(2000, 1), torch.Generator().manual_seed(0)
        >>> for _ in range(20):
        ...     x = hmc.move(lambda x: (x - 3).square().sum(-1) / 2, x, hmc.noise(x, g), hmc.step_size).x
        >>> abs(x.mean() - 3) < 0.1, abs(x.std() - 1) < 0.1
        (tensor(True), tensor(True))
    """

    def __init__(
        self, *, n_leapfrog: PositiveInt = 3, step_size: PositiveFloat = 0.3, target_acceptance: Fraction = 0.65
    ) -> None:
        self.n_leapfrog = n_leapfrog
        self.step_size = step_size
        self.target_acceptance = target_acceptance

    def noise(self, x: Tensor, generator: torch.Generator) -> MoveNoise:
        """Noise of one move of chains at x (B, D)."""
        options = {"generator": generator, "dtype": x.dtype, "device": x.device}
        return MoveNoise(torch.randn(x.shape, **options), torch.rand(len(x), **options))

    def move(
        self,
        energy: RowEnergy,
        x: Tensor,
        noise: MoveNoise,
        step_size: float | Tensor,
        here: tuple[Tensor, Tensor] | None = None,
    ) -> Move:
        """One move; nothing is differentiated through it.

        Args:
            energy: U, which maps (B, D) to (B,), each row by itself.
            x: Where the chains are, shape (B, D).
            noise: Of :meth:`noise`.
            step_size: epsilon, of all chains or of each, shape (B, 1).
            here: U (B,) and its slope (B, D) at x, where they are known.
        """

        def value_and_slope(x: Tensor) -> tuple[Tensor, Tensor]:
            def total(x: Tensor) -> tuple[Tensor, Tensor]:
                values = energy(x)
                return values.sum(), values

            with plain_autograd():
                slope, values = grad(total, has_aux=True)(x)
            return values.detach(), slope.to(x.dtype)

        rounds = torch.is_autocast_enabled(x.device.type)
        if here is None:
            before, slope_before = value_and_slope(x)
            before = unrounded(energy, x) if rounds else before
        else:
            before, slope_before = here
        end = x
        momentum = noise.momentum
        after = before
        slope = slope_before
        for _ in range(self.n_leapfrog):
            momentum = momentum - 0.5 * step_size * slope
            end = end + step_size * momentum
            after, slope = value_and_slope(end)
            momentum = momentum - 0.5 * step_size * slope
        after = unrounded(energy, end) if rounds else after
        kinetic = 0.5 * (noise.momentum.square().sum(-1) - momentum.square().sum(-1))
        acceptance = (before - after + kinetic).exp().clamp(max=1)
        acceptance = acceptance.where(acceptance.isfinite(), 0)  # a proposal so far off that its energy overflows
        taken = noise.uniform < acceptance
        rows = taken.unsqueeze(-1)
        return Move(end.where(rows, x), acceptance, after.where(taken, before), slope.where(rows, slope_before))

    def adapt(self, step_size: float, acceptance: Tensor) -> float:
        """A larger step where more was accepted than the target, a smaller one where less was; not while recording.

        Example:
            >>> HMC(target_acceptance=0.5).adapt(1.0, torch.ones(10)) > 1 > HMC().adapt(1.0, torch.zeros(10))
            True
        """
        return step_size * math.exp(float(acceptance.mean()) - self.target_acceptance)
