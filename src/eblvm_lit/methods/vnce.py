"""Variational noise-contrastive estimation."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from eblvm_lit.core.functional import bind, tree_map
from eblvm_lit.divergences.base import Divergence
from eblvm_lit.divergences.kl import IWAE
from eblvm_lit.energies.base import ConditionalEnergy, Energy
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.base import MethodParts, ParamGroup, TrainState
from eblvm_lit.methods.bism import PosteriorFit
from eblvm_lit.methods.nce import NCE
from eblvm_lit.noise_distributions.base import NoiseDistribution
from eblvm_lit.optimizers.base import Optimizer
from eblvm_lit.posteriors.base import Posterior

__all__ = ["VNCE", "TruePosterior"]


class TruePosterior:
    r"""p(h|v) instead of q, :math:`\log p(h|v) = F(v) - E(v, h)`.

    Args:
        energy: The model.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> p, v = TruePosterior(GRBM(v_dim=2, h_dim=3)), torch.zeros(5, 2)
        >>> h, log_p = p.rsample_and_log_prob(v, p.noise((7,), v, torch.Generator()))
        >>> h.shape, log_p.shape
        (torch.Size([7, 5, 3]), torch.Size([7, 5]))
    """

    def __init__(self, energy: ConditionalEnergy) -> None:
        self.energy = energy

    def noise(self, shape: tuple[int, ...], v: Tensor, generator: torch.Generator) -> Tensor:
        """Noise for one draw, shape (*shape, B, H)."""
        return self.energy.latent_noise((*shape, len(v)), v, generator)

    def rsample_and_log_prob(self, v: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """h ~ p(h|v), shape (*L, B, H), and log p(h|v), shape (*L, B)."""
        h = self.energy.draw_latent(v, noise)
        return h, self.energy.free_energy(v) - self.energy.energy(v, h)

    sample_and_log_prob = rsample_and_log_prob  # h are bits, or real


class VNCE(NCE):
    r"""Noise-contrastive estimation with bounds in the place of the free energy.

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
        ConfigError: For a number below its range, or parts that do not fit together.

    Example:
        >>> from eblvm_lit.noise_distributions.normal import StandardNormal
        >>> from eblvm_lit.divergences.kl import KL
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> from eblvm_lit.posteriors.bernoulli import BernoulliPosterior
        >>> vnce = VNCE(energy=GRBM(v_dim=2, h_dim=3), posterior=BernoulliPosterior(v_dim=2, h_dim=3),
        ...             divergence=KL(), noise_distribution=StandardNormal(), optimizer=Adam(lr=1e-3))
        >>> list(vnce.param_groups()), vnce.inner_steps()
        (['lower', 'upper'], 6)
    """

    def __init__(
        self,
        *,
        energy: Energy,
        noise_distribution: NoiseDistribution,
        optimizer: Optimizer,
        posterior: Posterior | None = None,
        divergence: Divergence | None = None,
        n_lower_steps: int = 5,
        n_particles: int = 5,
        nu: int = 1,
        lower_optimizer: Optimizer | None = None,
        seed: int = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(
            energy=energy, noise_distribution=noise_distribution, optimizer=optimizer, nu=nu, seed=seed, compile=compile
        )
        if (posterior is None) != (divergence is None):
            raise ConfigError("A posterior needs a divergence to be fitted by: give both, or null for both (p(h|v)).")
        if posterior is None and not isinstance(energy, ConditionalEnergy):
            raise ConfigError(f"{type(energy).__name__} has no p(h|v) to draw from: give a posterior and a divergence.")
        self.posterior, self.divergence, self.n_lower_steps = posterior, divergence, 0
        self.bound, self.lower_optimizer = IWAE(n_particles=n_particles), lower_optimizer or optimizer
        if posterior is not None and divergence is not None:
            self.n_lower_steps = n_lower_steps
            self.fit = PosteriorFit(
                energy=energy,
                posterior=posterior,
                divergence=divergence,
                n_steps=n_lower_steps,
                view=lambda theta: bind(self.model, theta).energy,
            )

    @staticmethod
    def check_energy(energy: Energy) -> None:
        """Refuse nothing: no free energy is needed."""

    @property
    def title(self) -> str:
        """With nu and K."""
        return f"VNCE: variational noise-contrastive estimation, nu = {self.nu}, K = {self.n_lower_steps}"

    def networks(self) -> dict[str, nn.Module]:
        """The model with c, and the posterior if there is one."""
        return super().networks() if self.posterior is None else {**super().networks(), "phi": self.posterior}

    def param_groups(self) -> dict[str, ParamGroup]:
        """phi in the lower level, if there is a posterior; theta and c in the upper one."""
        upper = super().param_groups()
        return upper if self.posterior is None else {"lower": ParamGroup("phi", self.lower_optimizer), **upper}

    @property
    def parts(self) -> MethodParts:
        """The energy and c; the posterior and its divergence."""
        return super().parts._replace(posterior=self.posterior, divergence=self.divergence)

    def inner_steps(self) -> int:
        """K + 1."""
        return self.n_lower_steps + 1

    def draw_noise(self, v: Tensor, generator: torch.Generator) -> dict[str, Any]:
        """The random numbers of the K lower steps and of the loss."""
        lower = {} if self.posterior is None else {"lower": self.fit.noise(v, self.n_lower_steps, generator)}
        return {**lower, **super().draw_noise(v, generator)}

    def iteration(self, state: TrainState, v: Tensor, noise: dict[str, Any]) -> TrainState:
        """K steps on phi at the data, then one on theta and c at that phi."""
        for k in range(self.n_lower_steps):
            lower_loss = partial(self.fit.loss, state.theta, v=v, noise=noise["lower"], i=k)
            state = self.descend(state, "lower", lower_loss)
        return super().iteration(state, v, noise)

    def noise(self, v: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        """The random numbers of one evaluation of the loss."""
        noise_distribution = super().noise(v, generator)["noise_distribution"]
        y = noise_distribution.flatten(0, 1)  # for its number of rows
        q = TruePosterior(self.model.energy) if self.posterior is None else self.posterior
        return {
            "noise_distribution": noise_distribution,
            "at_data": q.noise((1,), v, generator),
            "at_noise": q.noise((self.bound.n_particles,), y, generator),
        }

    def posterior_at(self, state: TrainState) -> Any:
        """q(h|v; phi), or p(h|v; theta) as a :class:`TruePosterior`; a constant to the gradient of the loss."""
        if self.posterior is None:
            return TruePosterior(bind(self.model, tree_map(Tensor.detach, state.theta)).energy)
        return bind(self.posterior, state.phi)

    def log_densities(self, state: TrainState, v: Tensor, y: Tensor, noise: Any) -> tuple[Tensor, Tensor]:
        """The bounds at v (B, *event) and y (nu B, *event), shapes (B,) and (nu B,)."""
        energy, q = bind(self.model, state.theta).energy, self.posterior_at(state)
        at_data = self.log_bound(energy, q, v, noise["at_data"])  # of one particle: the evidence bound
        return at_data, self.log_bound(energy, q, y, noise["at_noise"])

    def log_bound(self, energy: Energy, q: Any, v: Tensor, noise: Tensor) -> Tensor:
        """What stands for -F(v), shape (B,), of v (B, *event); h as q relaxes them, as in the released code."""
        return -self.bound.loss(energy, q, v, noise)
