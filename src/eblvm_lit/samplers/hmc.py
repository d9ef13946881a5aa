"""Hamiltonian Monte Carlo with a Metropolis step; one leapfrog step gives Metropolis-adjusted Langevin dynamics."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from eblvm_lit.core.functional import grad, plain_autograd
from eblvm_lit.core.ranges import Fraction
from eblvm_lit.samplers.energy_grad import unrounded

__all__ = ["HMC", "Move", "MoveNoise", "RowEnergy"]

RowEnergy = Callable[[Tensor], Tensor]  # maps x (B, D) to the energies U (B,), each row separately


class MoveNoise(NamedTuple):
    """The random numbers of a Hamiltonian move: momenta (B, D), and uniform numbers (B,) for the accept-reject step."""

    momentum: Tensor
    uniform: Tensor


class Move(NamedTuple):
    """The result of one Hamiltonian move of B chains.

    Attributes:
        x: The chains after the move, shape (B, D).
        acceptance: The probability with which each proposal was accepted, shape (B,).
        energy: The energies U at x, shape (B,).
        slope: The gradient of U at x, shape (B, D).
    """

    x: Tensor
    acceptance: Tensor
    energy: Tensor
    slope: Tensor


class HMC:
    r"""Hamiltonian Monte Carlo, whose moves leave the density :math:`e^{-U(x)}` invariant for every step size.

    From x and a fresh momentum :math:`p \sim N(0, I)`, L leapfrog steps of size :math:`\epsilon`,

    .. math:: p \leftarrow p - \tfrac\epsilon2 \nabla U(x), \quad x \leftarrow x + \epsilon p, \quad
        p \leftarrow p - \tfrac\epsilon2 \nabla U(x),

    lead to (x', p'), which is accepted with probability :math:`\min(1, e^{H(x, p) - H(x', p')})`,
    :math:`H(x, p) = U(x) + \tfrac12 |p|^2`. With L = 1 the proposal is that of Langevin dynamics, and the move is the
    Metropolis-adjusted Langevin algorithm. If autocast rounds U and its gradient, the acceptance still uses U without
    rounding. Leapfrog steps with any function of x in place of the gradient preserve volume and are reversible, so
    moves with rounded gradients also leave the distribution invariant. Reference: Neal 2011, arXiv 1206.1901.

    Args:
        n_leapfrog: The number L of leapfrog steps.
        step_size: The initial step size epsilon, in the units of x.
        target_acceptance: The mean acceptance at which the adaptation of step sizes aims.

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
        """Draw the random numbers of one move for chains at x (B, D)."""
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
        """Make one Hamiltonian move with all chains and detach the result.

        Args:
            energy: The function U, which maps (B, D) to (B,), each row separately.
            x: The current chains, shape (B, D).
            noise: The random numbers, as :meth:`noise` draws them.
            step_size: The step size epsilon, a number or one for each chain, shape (B, 1).
            here: U (B,) and its gradient (B, D) at x if they are known, for example from the last move.
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
        acceptance = acceptance.where(acceptance.isfinite(), 0)  # reject proposals whose energy overflows
        taken = noise.uniform < acceptance
        rows = taken.unsqueeze(-1)
        return Move(end.where(rows, x), acceptance, after.where(taken, before), slope.where(rows, slope_before))
