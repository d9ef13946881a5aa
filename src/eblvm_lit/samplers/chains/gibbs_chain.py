"""A chain of block Gibbs sweeps for the negative phase."""

from __future__ import annotations

import copy
from typing import cast

import torch
from pydantic import PositiveInt
from torch import Tensor

from eblvm_lit.energies.base import Energy, GibbsEnergy, MarginalEnergy
from eblvm_lit.errors import ConfigError
from eblvm_lit.samplers.chains.base import NegativePhase, State, energy_of

__all__ = ["GibbsChain"]


class GibbsChain(NegativePhase):
    r"""A chain of k block Gibbs sweeps, initialised at h ~ p(h|v).

    .. math:: h_0 \sim p(h|v), \quad v_t \sim p(v|h_{t-1}), \; h_t \sim p(h|v_t), \quad t = 1, \dots, k

    Persistent chains keep only h_t, because v_{t+1} depends on nothing else. Reference: Hinton 2002; Tieleman 2008.

    Args:
        n_steps: The number k of sweeps.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> grbm, chain, g, v = GRBM(v_dim=2, h_dim=3), GibbsChain(n_steps=5), torch.Generator(), torch.zeros(7, 2)
        >>> state = chain.start(grbm, v, chain.start_noise(grbm, v, g))
        >>> end = chain.run(grbm, state, chain.noise(grbm, 7, v, g))
        >>> end["v"].shape, end["h"].shape
        (torch.Size([7, 2]), torch.Size([7, 3]))
    """

    keeps_latents = False
    keeps_visible = False

    def __init__(self, *, n_steps: PositiveInt = 1) -> None:
        self.n_steps = n_steps

    def check(self, energy: Energy) -> None:
        """Raise an error if the conditionals p(h|v) and p(v|h) of the energy cannot be sampled."""
        if not isinstance(energy, GibbsEnergy):
            raise ConfigError(
                f"{type(energy).__name__} has no conditionals p(h|v), p(v|h) to draw from, which a Gibbs chain needs: "
                "use chain=langevin."
            )

    def shapes(self, energy: Energy) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the stored variables: the latents for persistent chains.

        Weighted chains store v, and without a tractable free energy the latents, too.
        """
        latents = {} if self.keeps_visible and isinstance(energy, MarginalEnergy) else {"h": (energy.h_dim,)}
        return {"v": energy.event_shape, **latents} if self.keeps_visible else latents

    def weighted(self) -> GibbsChain:
        """Return a copy of the chain for weighted samples, which stores v instead of h if F(v) is tractable.

        The weights of the samples are then ratios of exp(-F(v)), which vary less than ratios of exp(-E(v, h)).
        """
        chain = copy.copy(self)
        chain.keeps_visible = True
        return chain

    def start_noise(self, energy: GibbsEnergy, v: Tensor, generator: torch.Generator) -> Tensor:
        """Draw the noise for sampling h in :meth:`start`, shape (B, H)."""
        return energy.latent_noise((len(v),), v, generator)

    def start(self, energy: GibbsEnergy, v: Tensor, noise: Tensor) -> State:
        """Return v with latents h drawn from p(h|v), or with the means of a mean-field posterior."""
        return {"v": v, "h": energy.start_latent(v, noise).detach()}

    def noise(self, energy: GibbsEnergy, n: int, like: Tensor, generator: torch.Generator) -> State:
        """Draw the noise of k sweeps for n chains, with shape (k, n, *event) for v and (k, n, H) for h."""
        return {
            "v": energy.visible_noise((self.n_steps, n), like, generator),
            "h": energy.latent_noise((self.n_steps, n), like, generator),
        }

    def run(self, energy: GibbsEnergy, state: State, noise: State) -> State:
        """Run k sweeps, and return v and h after the last one."""
        h = state["h"].detach()
        for v_noise, h_noise in zip(noise["v"], noise["h"], strict=True):
            v = energy.draw_visible(h, v_noise).detach()
            h = energy.move_latent(v, h, h_noise).detach()
        return {"v": v, "h": h}

    def weighted_run(self, energy: GibbsEnergy, state: State, noise: State) -> tuple[State, Tensor]:
        """Run k sweeps from v_0 to v_k, and return the last state and the log-ratio of transition densities.

        The log-ratio is F(v_k) - F(v_0), because the sweeps leave p(v) invariant; or E(v_k, h_k) - E(v_0, h_0) if F is
        not tractable.
        """
        end = {"h": None, **state}
        for h_noise, v_noise in zip(noise["h"], noise["v"], strict=True):
            h = energy.move_latent(end["v"], cast(Tensor, end["h"]), h_noise).detach()
            end = {"v": energy.draw_visible(h, v_noise).detach(), "h": h}
        end = {name: end[name] for name in state}
        return end, (energy_of(energy, end) - energy_of(energy, state)).detach()

    def reconstruct(self, energy: GibbsEnergy, state: State, generator: torch.Generator | None = None) -> Tensor:
        """Compute the mean E[v|h] or, if a random generator is given, draw v ~ p(v|h)."""
        if generator is None:
            return energy.visible_mean(state["h"])
        v = state["v"]
        return energy.draw_visible(state["h"], energy.visible_noise((len(v),), v, generator))
