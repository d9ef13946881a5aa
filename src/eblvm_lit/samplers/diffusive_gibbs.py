"""Diffusive Gibbs sampling: noise is added to a sample, and a new sample is drawn given the noisy one."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from eblvm_lit.samplers.dynamics import Chains, Dynamics, FlatChains
from eblvm_lit.samplers.energy_grad import unrounded
from eblvm_lit.samplers.hmc import HMC, MoveNoise
from eblvm_lit.samplers.sample_noise import SampleNoise

__all__ = ["DiffusiveGibbs"]


class DiffusiveGibbs(Dynamics):
    r"""Gibbs sampling of the variables x and a noisy copy y of x, at decreasing noise levels.

    .. math:: y = x + \tau \xi, \quad x \leftarrow x' \sim N(y, \tau^2 I) \text{ with probability }
        \min(1, e^{E(x) - E(x')}), \quad x \sim p(x | y) \propto e^{-E(x) - |y - x|^2 / (2 \tau^2)}

    Each step visits one noise level tau and has three parts: y is drawn given x; a proposal x', which may lie in
    another mode, is drawn and accepted or rejected; and x takes some Metropolis-adjusted Langevin moves, which leave
    p(x|y) invariant. All three leave the model's distribution of x invariant. The paper adds noise by
    :math:`\tilde x = \alpha x + \sigma \xi`. In terms of :math:`y = \tilde x / \alpha` only the ratio
    :math:`\tau = \sigma / \alpha` matters, so alpha is not a parameter here. The levels form a geometric sequence. The
    step size at a level is :math:`(\epsilon^{-2} + \tau^{-2})^{-1/2}`, because p(x|y) is narrower than the model's
    distribution. Reference: Chen et al. 2024, arXiv 2402.03008, Algorithm 1 and section 3.

    Args:
        n_sweeps: The number of passes through all levels.
        noise_max: The largest tau, about the distance between modes.
        noise_min: The smallest tau, about the width of a mode.
        n_levels: The number of noise levels.
        n_moves: The number of Metropolis-adjusted Langevin moves at a level.
        step_size: The number epsilon in the step size of these moves.
        denoise_std: See :class:`~eblvm_lit.samplers.dynamics.Dynamics`.

    Example:
        >>> two_modes = lambda x: 20 * (x.abs() - 1).square().sum(1)
        >>> digs, noise = DiffusiveGibbs(n_sweeps=40, step_size=0.3), SampleNoise(0, range(500))
        >>> (x,) = digs.end(Chains(two_modes, (torch.ones(500, 1),)), noise)
        >>> bool(abs((x > 0).double().mean() - 0.5) < 0.07)
        True
    """

    def __init__(
        self,
        *,
        n_sweeps: PositiveInt = 100,
        noise_max: PositiveFloat = 1.0,
        noise_min: PositiveFloat = 0.1,
        n_levels: PositiveInt = 5,
        n_moves: PositiveInt = 2,
        step_size: PositiveFloat = 0.1,
        denoise_std: NonNegativeFloat = 0.0,
    ) -> None:
        self.n_sweeps = n_sweeps
        self.n_levels = n_levels
        self.n_moves = n_moves
        self.step_size = step_size
        self.noise_max = noise_max
        self.noise_min = noise_min
        self.denoise_std = denoise_std

    @property
    def n_steps(self) -> int:
        """The number of steps: the number of sweeps times the number of levels."""
        return self.n_sweeps * self.n_levels

    def steps(self, chains: Chains, noise: SampleNoise) -> Iterator[tuple[Tensor, ...]]:
        """Yield the chains' variables after each noise level; see :meth:`Dynamics.steps`."""
        flat = FlatChains(chains)
        mala = HMC(n_leapfrog=1)
        x = flat.x
        levels = torch.logspace(math.log10(self.noise_max), math.log10(self.noise_min), self.n_levels).tolist()
        numbers = noise.steps(self.n_steps, (2 + self.n_moves) * x.shape[1], 1 + self.n_moves, dtype=x.dtype)
        for tau, (normal, uniforms) in zip(levels * self.n_sweeps, numbers, strict=True):
            drawn = normal.unflatten(1, (2 + self.n_moves, -1)).unbind(1)
            uniform = uniforms.unbind(1)
            y = x + tau * drawn[0]
            proposal = y + tau * drawn[1]
            taken = uniform[0].log() < unrounded(flat.energies, x) - unrounded(flat.energies, proposal)
            x = proposal.where(taken.unsqueeze(1), x)
            here = None
            size = (self.step_size**-2 + tau**-2) ** -0.5

            def posterior(x: Tensor, y: Tensor = y, tau: float = tau) -> Tensor:
                return flat.energies(x) + (y - x).square().sum(1) / (2 * tau**2)

            for momentum, u in zip(drawn[2:], uniform[1:], strict=True):
                move = mala.move(posterior, x, MoveNoise(momentum, u), size, here)
                x = move.x
                here = (move.energy, move.slope)
            yield flat.parts(x)
