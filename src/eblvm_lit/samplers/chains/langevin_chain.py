"""A chain of Langevin steps for the negative phase."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from eblvm_lit.core.ranges import Pair
from eblvm_lit.energies.base import Energy, MarginalEnergy, refuse_bits
from eblvm_lit.errors import ConfigError
from eblvm_lit.samplers.chains.base import NegativePhase, State, energy_of
from eblvm_lit.samplers.langevin import Langevin
from eblvm_lit.samplers.latent_chains import posterior_energy

__all__ = ["LangevinChain"]


class LangevinChain(NegativePhase):
    r"""A chain of k Langevin steps on v if the free energy F(v) is tractable, else on (v, h) with the energy E(v, h).

    .. math:: x \leftarrow x - \tfrac a2 \nabla_x E(x) + s\, \epsilon, \quad \epsilon \sim N(0, I)

    Without a free energy the positive phase needs latents, too. They are drawn by Langevin steps on h at fixed v, which
    start from N(0, I). New chains start from the positive phase, or from noise: uniform v, and h ~ N(0, I). The papers
    do not use Langevin chains for CD. Short Langevin chains are usual for deep energies; those of Nijkamp et al. 2019
    start from noise.

    Args:
        n_steps: The number k of steps.
        step_size: The step size a.
        noise_std: The standard deviation s of the noise; by default sqrt(a), for which the chain samples the model up
            to O(a).
        n_latent_steps: The number of steps that draw the positive phase's latents; not used if F is tractable.
        uniform_start: The range (low, high) of the uniform v from which new chains start; null to start from the data.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> grbm, chain, g = GRBM(v_dim=2, h_dim=3), LangevinChain(n_steps=5, step_size=0.01), torch.Generator()
        >>> state = chain.start(grbm, torch.zeros(7, 2), {})
        >>> chain.run(grbm, state, chain.noise(grbm, 7, state["v"], g))["v"].shape
        torch.Size([7, 2])
    """

    keeps_latents = True
    joint = False

    def __init__(
        self,
        *,
        n_steps: PositiveInt,
        step_size: PositiveFloat,
        noise_std: NonNegativeFloat | None = None,
        n_latent_steps: NonNegativeInt = 20,
        uniform_start: Pair | None = None,
    ) -> None:
        self.n_steps = n_steps
        self.uniform_start = uniform_start
        self.steps = Langevin(n_steps=n_steps, step_size=step_size, noise_std=noise_std)
        self.latent_steps = Langevin(n_steps=n_latent_steps, step_size=step_size, noise_std=noise_std)
        self.one_step = Langevin(n_steps=1, step_size=step_size, noise_std=noise_std)

    def jointly(self) -> LangevinChain:
        """Return a copy whose steps move v and h jointly, even if the free energy is tractable."""
        chain = copy.copy(self)
        chain.joint = True
        return chain

    def check(self, energy: Energy) -> None:
        """Raise an error if the chain would have to move binary units."""
        refuse_bits(energy, "chain=langevin")
        if not energy.continuous and "h" in self.shapes(energy):
            raise ConfigError(
                f"{type(energy).__name__} has binary latents, which Langevin dynamics cannot move: use chain=gibbs, or "
                "a model with continuous latents."
            )

    def shapes(self, energy: Energy) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the chain's variables: v and, for joint chains or an intractable free energy, also h."""
        shapes = {"v": energy.event_shape, "h": (energy.h_dim,)}
        return {"v": shapes["v"]} if isinstance(energy, MarginalEnergy) and not self.joint else shapes

    def start_noise(self, energy: Energy, v: Tensor, generator: torch.Generator) -> State:
        """Draw initial latents (B, H) and the noise of the Langevin steps on h, or return {} if there are none."""
        if "h" not in self.shapes(energy):
            return {}
        h = torch.randn((len(v), energy.h_dim), generator=generator, dtype=v.dtype, device=v.device)
        return {"h": h, "steps": self.latent_steps.noise(h, generator)}

    def start(self, energy: Energy, v: Tensor, noise: State) -> State:
        """Return v and, for chains with latents, latents h drawn by Langevin steps on the energy E(v, h) at fixed v."""
        return {"v": v} if "h" not in self.shapes(energy) else {"v": v, "h": self.latents(energy, v, noise["h"], noise)}

    def latents(self, energy: Energy, v: Tensor, h: Tensor, noise: State) -> Tensor:
        """Move latents h (B, H) by Langevin steps at fixed v."""
        return self.latent_steps.run(posterior_energy(energy, v), (h,), (noise["steps"],))[0]

    def noise(self, energy: Energy, n: int, like: Tensor, generator: torch.Generator) -> State:
        """Draw the noise of k steps for each variable of n chains, shape (k, n, *shape of the variable).

        If new chains start from noise, their initial variables are included under ``<name>_start``.
        """
        rows = {name: like.new_empty(n, *shape) for name, shape in self.shapes(energy).items()}
        noise = {name: self.steps.noise(x, generator) for name, x in rows.items()}
        if self.uniform_start is not None:
            low, high = self.uniform_start
            noise["v_start"] = rows["v"].uniform_(low, high, generator=generator)
            if "h" in rows:
                noise["h_start"] = rows["h"].normal_(generator=generator)
        return noise

    def begin(self, positive: State, noise: State) -> State:
        """Return the initial state of new chains: the positive phase's state, or noise if ``uniform_start`` is set."""
        return positive if self.uniform_start is None else {name: noise[f"{name}_start"] for name in positive}

    def run(self, energy: Energy, state: State, noise: State) -> State:
        """Run k steps, and return the variables after the last one."""
        end = self.steps.run(self._total(energy, state), tuple(state.values()), tuple(noise[name] for name in state))
        return dict(zip(state, end, strict=True))

    def weighted_run(self, energy: Energy, state: State, noise: State) -> tuple[State, Tensor]:
        """Run k steps, and return the final variables and the log-ratio of transition densities of all k steps."""
        start = tuple(state.values())
        eps = tuple(noise[name] for name in state)
        end, ratio = self.steps.run_with_ratio(self._total(energy, state), start, eps)
        return dict(zip(state, end, strict=True)), ratio

    def reconstruct(self, energy: Energy, state: State, generator: torch.Generator | None = None) -> Tensor:
        """Compute v after one Langevin step, with noise only if a random generator is given."""
        x = tuple(state.values())
        draw = self.one_step.noise
        noise = tuple(torch.zeros_like(part[None]) if generator is None else draw(part, generator) for part in x)
        end = self.one_step.run(self._total(energy, state), x, noise)
        return dict(zip(state, end, strict=True))["v"]

    @staticmethod
    def _total(energy: Energy, state: State) -> Callable[..., Tensor]:
        if "h" in state:
            return lambda v, h: energy.energy(v, h).sum()
        return lambda v: energy_of(energy, {"v": v}).sum()
