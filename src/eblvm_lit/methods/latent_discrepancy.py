"""Energy discrepancy of energies whose latents cannot be summed out."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from eblvm_lit.core.ranges import Seed
from eblvm_lit.divergences.base import Divergence
from eblvm_lit.divergences.kl import importance_weighted_bound
from eblvm_lit.energies.base import Energy
from eblvm_lit.methods.energy_discrepancy import EnergyDiscrepancy
from eblvm_lit.methods.posterior_fit import LossWithPosterior
from eblvm_lit.methods.state import TrainState
from eblvm_lit.optimizers.base import Optimizer
from eblvm_lit.posteriors.base import Posterior

__all__ = ["LatentEnergyDiscrepancy"]


class LatentEnergyDiscrepancy(LossWithPosterior, EnergyDiscrepancy):
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
        ConfigError: For parts that do not fit together.

    Example:
        >>> from eblvm_lit.divergences.kl import KL
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> from eblvm_lit.posteriors.bernoulli import BernoulliPosterior
        >>> ed = LatentEnergyDiscrepancy(
        ...     energy=GRBM(v_dim=2, h_dim=3), posterior=BernoulliPosterior(v_dim=2, h_dim=3), divergence=KL(),
        ...     optimizer=Adam(lr=1e-3), noise_std=0.5)
        >>> list(ed.param_groups())
        ['lower', 'upper']
    """

    energy_type = Energy

    def __init__(
        self,
        *,
        energy: Energy,
        optimizer: Optimizer,
        posterior: Posterior | None = None,
        divergence: Divergence | None = None,
        n_lower_steps: NonNegativeInt = 5,
        n_particles: PositiveInt = 5,
        noise_std: PositiveFloat = 1.0,
        n_negatives: PositiveInt = 4,
        w: NonNegativeFloat = 1.0,
        lower_optimizer: Optimizer | None = None,
        seed: Seed = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        scales = {"noise_std": noise_std, "n_negatives": n_negatives, "w": w}
        super().__init__(energy=energy, optimizer=optimizer, seed=seed, compile=compile, **scales)
        self.n_particles = n_particles
        self.keep_posterior(posterior, divergence, n_lower_steps, lower_optimizer)

    @property
    def title(self) -> str:
        """With L and K."""
        return f"{super().title}, L = {self.n_particles}, K = {self.n_lower_steps}"

    def noise(self, v: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        """The random numbers of one evaluation of the loss: perturbations, and latents at v and at each u."""
        q = self.live_posterior()
        return {
            **super().noise(v, generator),
            "at_data": q.noise((self.n_particles,), v, generator),
            "at_negatives": q.noise((self.n_particles, self.n_negatives), v, generator),
        }

    def lower_noise(self, v: Tensor, generator: torch.Generator) -> dict[str, Any]:
        """The random numbers of the K lower steps: latents at v and at one negative of each, and its perturbation."""
        lower = self.fit.noise(torch.cat([v, v]), self.n_lower_steps, generator)
        shape = (self.n_lower_steps, 2, *v.shape)
        lower["perturbation"] = torch.randn(shape, generator=generator, dtype=v.dtype, device=v.device)
        return lower

    def lower_points(self, v: Tensor, noise: dict[str, Any], k: int) -> Tensor:
        """Data and negatives."""
        u = self.negatives(v, {"perturbation": noise["perturbation"][k]})
        return torch.cat([v, u.flatten(0, 1)])

    def energy_differences(self, state: TrainState, v: Tensor, u: Tensor, noise: Any) -> Tensor:
        """Estimates of F(v) - F(u_i), shape (M, B), of v (B, *event) and u (M, B, *event)."""
        energy = self.energy_at(state.theta)
        q = self.posterior_at(state)
        rows = u.flatten(0, 1)
        at_v = importance_weighted_bound(energy, v, *q.sample_and_log_prob(v, noise["at_data"]))
        latents = q.sample_and_log_prob(rows, noise["at_negatives"].flatten(1, 2))
        return at_v - importance_weighted_bound(energy, rows, *latents).view(u.shape[:2])
