"""Alternating Gibbs and Langevin sampling of p(v, h), for models whose p(h|v) can be sampled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from eblvm_lit.energies.base import ConditionalEnergy
from eblvm_lit.samplers.dynamics import Chains, Dynamics, FlatChains
from eblvm_lit.samplers.energy_grad import unrounded
from eblvm_lit.samplers.hmc import HMC, MoveNoise
from eblvm_lit.samplers.sample_noise import SampleNoise

__all__ = ["GibbsLangevin"]


class GibbsLangevin(Dynamics):
    r"""Dynamics that alternate exact draws of h given v with Langevin moves of v given h.

    .. math:: h \sim p(h | v), \qquad v \text{ by Metropolis-adjusted Langevin moves towards } p(v | h)
        \propto e^{-E(v, h)}

    Both leave p(v, h) invariant. Given latents and kept pixels of v do not change.

    Args:
        n_steps: The number of steps, each of which draws h and moves v.
        n_moves: The number of moves of v for each h.
        step_size: The step size of these moves.
        denoise_std: See :class:`~eblvm_lit.samplers.dynamics.Dynamics`.

    Example:
        >>> import torch
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.samplers.sampler import Sampler
        >>> sampler = Sampler(dynamics=GibbsLangevin(n_steps=10))
        >>> sampler.sample(GRBM(v_dim=2, h_dim=3), 5, torch.Generator()).shape
        torch.Size([5, 2])
    """

    kinds = ("gibbs",)

    def __init__(
        self,
        *,
        n_steps: PositiveInt = 1000,
        n_moves: PositiveInt = 1,
        step_size: PositiveFloat = 0.1,
        denoise_std: NonNegativeFloat = 0.0,
    ) -> None:
        self.n_steps = n_steps
        self.n_moves = n_moves
        self.step_size = step_size
        self.denoise_std = denoise_std

    def steps(self, chains: Chains, noise: SampleNoise) -> Iterator[tuple[Tensor, ...]]:
        """Yield v and h after each step, or only v if the latents h are given; see :meth:`Dynamics.steps`."""
        v = chains.start[0]
        mala = HMC(n_leapfrog=1)
        size = v[0].numel()
        moves = self.n_moves
        for normal, uniform in noise.steps(self.n_steps, moves * size, moves, dtype=v.dtype):
            h = () if chains.given else (self._latents(chains, v, noise),)
            flat = FlatChains(
                chains._replace(start=(v,), given=h or chains.given, moving=chains.moving and chains.moving[:1])
            )
            x = flat.x
            here = None
            for momentum, u in zip(normal.split(size, 1), uniform.unbind(1), strict=True):
                move = mala.move(flat.energies, x, MoveNoise(momentum, u), self.step_size, here)
                x = move.x
                here = (move.energy, move.slope)
            (v,) = flat.parts(x)
            yield v, *h

    @staticmethod
    def _latents(chains: Chains, v: Tensor, noise: SampleNoise) -> Tensor:
        """Draw latents h ~ p(h|v), shape (B, H)."""
        energy = cast(ConditionalEnergy, chains.conditional)  # an energy of real v, whose p(h|v) is exact
        drawn = noise.rows(lambda generator: energy.latent_noise((1,), v, generator))[:, 0]
        return unrounded(lambda v: energy.draw_latent(v, drawn), v)
