"""Variational noise-contrastive estimation."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from eblvm_lit.core.ranges import Seed
from eblvm_lit.divergences.base import Divergence
from eblvm_lit.divergences.kl import IWAE
from eblvm_lit.energies.base import Energy
from eblvm_lit.methods.nce import NCE
from eblvm_lit.methods.posterior_fit import LossWithPosterior
from eblvm_lit.methods.state import TrainState
from eblvm_lit.noise_distributions.base import NoiseDistribution
from eblvm_lit.optimizers.base import Optimizer
from eblvm_lit.posteriors.base import Posterior

__all__ = ["VNCE"]


class VNCE(LossWithPosterior, NCE):
    r"""Noise-contrastive estimation with bounds instead of the free energy.

    .. math:: -F(v) \to -E(v, h) - \log q(h|v), \quad
        -F(y) \to \log \frac1L \sum_{l=1}^L \exp(-E(y, h_l) - \log q(h_l|y)), \quad h, h_l \sim q

    in NCE's loss, at the data and at the noise. An iteration is K steps on phi down the divergence of q(h|v) from
    p(h|v) at the data; then one step on theta and c, at that phi. With posterior=null h come from p(h|v) itself, and
    the loss is NCE's. Reference: Rhodes and Gutmann 2019; Bao et al. 2021, code.

    Args:
        energy: The model, E(v, h; theta).
        noise_distribution: p_n.
        optimizer: Rule of the upper level, which moves theta and c.
        posterior: q(h|v; phi); null for p(h|v).
        divergence: Of q from p; null where there is no q.
        n_lower_steps: K.
        n_particles: L.
        nu: Number of y for each v.
        lower_optimizer: Rule of the lower level; the upper one's if not given.
        seed: Seed of all noise.
        compile: Whether the iteration is compiled.

    Raises:
        ConfigError: For parts that do not fit together.

    Example:
        >>> from eblvm_lit.noise_distributions.normal import StandardNormal
        >>> from eblvm_lit.divergences.kl import KL
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> from eblvm_lit.posteriors.bernoulli import BernoulliPosterior
        >>> vnce = VNCE(energy=GRBM(v_dim=2, h_dim=3), posterior=BernoulliPosterior(v_dim=2, h_dim=3),
        ...             divergence=KL(), noise_distribution=StandardNormal(), optimizer=Adam(lr=1e-3))
        >>> list(vnce.param_groups())
        ['lower', 'upper']
    """

    energy_type = Energy

    def __init__(
        self,
        *,
        energy: Energy,
        noise_distribution: NoiseDistribution,
        optimizer: Optimizer,
        posterior: Posterior | None = None,
        divergence: Divergence | None = None,
        n_lower_steps: NonNegativeInt = 5,
        n_particles: PositiveInt = 5,
        nu: PositiveInt = 1,
        lower_optimizer: Optimizer | None = None,
        seed: Seed = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(
            energy=energy, noise_distribution=noise_distribution, optimizer=optimizer, nu=nu, seed=seed, compile=compile
        )
        self.keep_posterior(posterior, divergence, n_lower_steps, lower_optimizer)
        self.bound = IWAE(n_particles=n_particles)

    @property
    def title(self) -> str:
        """With nu and K."""
        return f"VNCE: variational noise-contrastive estimation, nu = {self.n_proposals}, K = {self.n_lower_steps}"

    def noise(self, v: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        """The random numbers of one evaluation of the loss."""
        noise_distribution = super().noise(v, generator)["noise_distribution"]
        y = noise_distribution.flatten(0, 1)  # for its number of rows
        q = self.live_posterior()
        return {
            "noise_distribution": noise_distribution,
            "at_data": q.noise((1,), v, generator),
            "at_noise": q.noise((self.bound.n_particles,), y, generator),
        }

    def log_densities(self, state: TrainState, v: Tensor, y: Tensor, noise: Any) -> tuple[Tensor, Tensor]:
        """The bounds at v (B, *event) and y (nu B, *event), shapes (B,) and (nu B,)."""
        energy = self.energy_at(state.theta)
        q = self.posterior_at(state)
        at_data = self.log_bound(energy, q, v, noise["at_data"])  # of one particle: the evidence bound
        return at_data, self.log_bound(energy, q, y, noise["at_noise"])

    def log_bound(self, energy: Energy, q: Any, v: Tensor, noise: Tensor) -> Tensor:
        """The bound that replaces -F(v), shape (B,), of v (B, *event); h as q relaxes them, as in the released code."""
        return -self.bound.loss(energy, q, v, noise)
