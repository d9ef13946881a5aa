"""Energy discrepancy of energies whose latents cannot be summed out."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from eblvm_lit.core.functional import bind, tree_map
from eblvm_lit.divergences.base import Divergence
from eblvm_lit.divergences.kl import importance_weighted_bound
from eblvm_lit.energies.base import ConditionalEnergy, Energy
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.base import MethodParts, ParamGroup, TrainState
from eblvm_lit.methods.bism import PosteriorFit
from eblvm_lit.methods.energy_discrepancy import EnergyDiscrepancy
from eblvm_lit.methods.vnce import TruePosterior
from eblvm_lit.optimizers.base import Optimizer
from eblvm_lit.posteriors.base import Posterior

__all__ = ["LatentEnergyDiscrepancy"]


class LatentEnergyDiscrepancy(EnergyDiscrepancy):
    r"""Energy discrepancy with importance-weighted differences of free energies.

    .. math:: F(v) \approx -\log \frac1L \sum_{l=1}^L \frac{e^{-E(v, h_l)}}{q(h_l|v)}, \quad h_l \sim q(h|v)

    in the loss of :class:`~eblvm_lit.methods.energy_discrepancy.EnergyDiscrepancy`, at v and at each negative u; h are
    bits where they are binary. The mean of the weights is exp(-F). The mean of the estimate is above F: by
    KL(q(h|v) || p(h|v)) with one particle, and by about :math:`\chi^2(p(h|v) \| q(h|v)) / (2 L)` with many. So the loss
    is biased upwards at v and downwards at u, both by O(1 / L). With q = p(h|v)
    the weights are constant in h, and the loss is the exact one for every L. An iteration is K steps on phi down the
    divergence of q from p, at v and at one fresh negative of each v, because the loss needs q at both; then one step on
    theta at that phi. With posterior=null h come from p(h|v) itself. Not published: the loss of Schroeder et al. 2023,
    arXiv:2307.06431, with the estimates that Rhodes and Gutmann 2019 use in noise-contrastive estimation.

    Args:
        energy: The model, E(v, h; theta).
        optimizer: Rule of the upper level, which moves theta.
        posterior: q(h|v; phi); null for p(h|v).
        divergence: Of q from p; null where there is no q.
        n_lower_steps: K.
        n_particles: L.
        noise_std: sigma, in the units of v.
        n_negatives: M.
        w: The stabiliser, >= 0.
        lower_optimizer: Rule of the lower level; the upper one's if not given.
        seed: Seed of all noise.
        compile: Whether the iteration is compiled.

    Raises:
        ConfigError: For a number below its range, or parts that do not fit together.

    Example:
        >>> from eblvm_lit.divergences.kl import KL
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> from eblvm_lit.posteriors.bernoulli import BernoulliPosterior
        >>> ed = LatentEnergyDiscrepancy(
        ...     energy=GRBM(v_dim=2, h_dim=3), posterior=BernoulliPosterior(v_dim=2, h_dim=3), divergence=KL(),
        ...     optimizer=Adam(lr=1e-3), noise_std=0.5)
        >>> list(ed.param_groups()), ed.inner_steps()
        (['lower', 'upper'], 6)
    """

    def __init__(
        self,
        *,
        energy: Energy,
        optimizer: Optimizer,
        posterior: Posterior | None = None,
        divergence: Divergence | None = None,
        n_lower_steps: int = 5,
        n_particles: int = 5,
        noise_std: float = 1.0,
        n_negatives: int = 4,
        w: float = 1.0,
        lower_optimizer: Optimizer | None = None,
        seed: int = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        scales = {"noise_std": noise_std, "n_negatives": n_negatives, "w": w}
        super().__init__(energy=energy, optimizer=optimizer, seed=seed, compile=compile, **scales)
        if (posterior is None) != (divergence is None):
            raise ConfigError("A posterior needs a divergence to be fitted by: give both, or null for both (p(h|v)).")
        if posterior is None and not isinstance(energy, ConditionalEnergy):
            raise ConfigError(f"{type(energy).__name__} has no p(h|v) to draw from: give a posterior and a divergence.")
        self.posterior, self.divergence, self.n_lower_steps = posterior, divergence, 0
        if n_particles < 1:
            raise ConfigError(f"Energy discrepancy with latents needs n_particles >= 1, not {n_particles}.")
        self.n_particles = n_particles
        self.lower_optimizer = lower_optimizer or optimizer
        if posterior is not None and divergence is not None:
            self.n_lower_steps, parts = n_lower_steps, {"posterior": posterior, "divergence": divergence}
            self.fit = PosteriorFit(energy=energy, n_steps=n_lower_steps, **parts)

    @staticmethod
    def check_energy(energy: Energy) -> None:
        """Refuse an energy of v alone, which needs no estimate."""
        if energy.h_dim == 0:
            raise ConfigError(f"{type(energy).__name__} has no latents, which method=ed_latent needs: use method=ed.")

    @property
    def title(self) -> str:
        """With L and K."""
        return f"{super().title}, L = {self.n_particles}, K = {self.n_lower_steps}"

    def networks(self) -> dict[str, nn.Module]:
        """The model, and the posterior if there is one."""
        return super().networks() if self.posterior is None else {**super().networks(), "phi": self.posterior}

    def param_groups(self) -> dict[str, ParamGroup]:
        """phi in the lower level, if there is a posterior; theta in the upper one."""
        upper = super().param_groups()
        return upper if self.posterior is None else {"lower": ParamGroup("phi", self.lower_optimizer), **upper}

    @property
    def parts(self) -> MethodParts:
        """The energy, the posterior and its divergence."""
        return MethodParts(energy=self.energy, posterior=self.posterior, divergence=self.divergence)

    def inner_steps(self) -> int:
        """K + 1."""
        return self.n_lower_steps + 1

    def noise(self, v: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        """The random numbers of one evaluation of the loss: perturbations, and latents at v and at each u."""
        q = TruePosterior(cast(ConditionalEnergy, self.energy)) if self.posterior is None else self.posterior
        return {
            **super().noise(v, generator),
            "at_data": q.noise((self.n_particles,), v, generator),
            "at_negatives": q.noise((self.n_particles, self.n_negatives), v, generator),
        }

    def draw_noise(self, v: Tensor, generator: torch.Generator) -> dict[str, Any]:
        """The random numbers of the K lower steps and of the loss."""
        if self.posterior is None:
            return super().draw_noise(v, generator)
        options = {"generator": generator, "dtype": v.dtype, "device": v.device}
        lower = self.fit.noise(torch.cat([v, v]), self.n_lower_steps, generator)  # latents at v and at u
        lower["perturbation"] = torch.randn((self.n_lower_steps, 2, *v.shape), **options)
        return {"lower": lower, **super().draw_noise(v, generator)}

    def iteration(self, state: TrainState, v: Tensor, noise: dict[str, Any]) -> TrainState:
        """K steps on phi at data and negatives, then one on theta at that phi."""
        for k in range(self.n_lower_steps):
            u = self.negatives(v, {"perturbation": noise["lower"]["perturbation"][k]})
            points = torch.cat([v, u.flatten(0, 1)])
            lower_loss = partial(self.fit.loss, state.theta, v=points, noise=noise["lower"], i=k)
            state = self.descend(state, "lower", lower_loss)
        return super().iteration(state, v, noise)

    def posterior_at(self, state: TrainState) -> Any:
        """q(h|v; phi), or p(h|v; theta) as a :class:`TruePosterior`; a constant to the gradient of the loss."""
        if self.posterior is None:
            return TruePosterior(cast(ConditionalEnergy, bind(self.energy, tree_map(Tensor.detach, state.theta))))
        return bind(self.posterior, state.phi)

    def energy_differences(self, state: TrainState, v: Tensor, u: Tensor, noise: Any) -> Tensor:
        """Estimates of F(v) - F(u_i), shape (M, B), of v (B, *event) and u (M, B, *event)."""
        energy, q = bind(self.energy, state.theta), self.posterior_at(state)
        rows = u.flatten(0, 1)
        at_v = importance_weighted_bound(energy, v, *q.sample_and_log_prob(v, noise["at_data"]))
        latents = q.sample_and_log_prob(rows, noise["at_negatives"].flatten(1, 2))
        return at_v - importance_weighted_bound(energy, rows, *latents).view(u.shape[:2])
