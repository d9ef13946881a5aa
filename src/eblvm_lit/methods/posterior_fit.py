"""The lower level that the variational methods share: fitting q(h|v) to p(h|v)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from eblvm_lit.core.autograd import grad_and_value
from eblvm_lit.core.functional import Params, bind
from eblvm_lit.divergences.base import Divergence
from eblvm_lit.energies.base import Energy
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.levels import Gradient, Level, TrainState
from eblvm_lit.objectives.base import Objective
from eblvm_lit.optimizers.base import Optimizer
from eblvm_lit.posteriors.base import Posterior

__all__ = ["PosteriorFit"]


class PosteriorFit:
    r"""K steps on phi down G, a divergence of q(h|v; phi) from p(h|v; theta), with fresh noise in each.

    .. math:: G(\theta, \phi) = E_v\, w(v)\, D(q(h|v; \phi), p(h|v; \theta))

    v are the points at which the upper level needs q: data, perturbed as its objective perturbs them. Reference: Bao
    et al. 2020, Algorithm 1; Bao et al. 2021, section 3.

    Args:
        energy: The model.
        posterior: q.
        divergence: D.
        n_steps: K.
        optimizer: The rule of the steps.
        objective: Perturbs the data and gives the weight w; data are left as they are if not given.
        view: The model as a function of theta; ``bind(energy, theta)`` if not given.

    Raises:
        ConfigError: For a negative K, or a posterior that fits neither the model nor the divergence.

    Example:
        >>> from eblvm_lit.divergences.kl import KL
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> from eblvm_lit.posteriors.bernoulli import BernoulliPosterior
        >>> fit = PosteriorFit(energy=GRBM(v_dim=2, h_dim=3), posterior=BernoulliPosterior(v_dim=2, h_dim=3),
        ...                    divergence=KL(), n_steps=5, optimizer=Adam(lr=1e-3))
        >>> fit.level().name, fit.level().n_steps
        ('lower', 5)
    """

    def __init__(
        self,
        *,
        energy: Energy,
        posterior: Posterior,
        divergence: Divergence,
        n_steps: int,
        optimizer: Optimizer,
        objective: Objective | None = None,
        view: Callable[[Params], Energy] | None = None,
    ) -> None:
        if n_steps < 0:
            raise ConfigError(f"n_lower_steps (K) must be >= 0, not {n_steps}.")
        if energy.h_dim == 0:
            raise ConfigError(
                f"{type(energy).__name__} has no latents, so there is no posterior to fit: use method=mdsm, dsm or cd, "
                "or a model with latents."
            )
        if posterior.continuous != energy.continuous:
            kinds = {True: "continuous", False: "binary"}
            raise ConfigError(
                f"{type(posterior).__name__} has {kinds[posterior.continuous]} latents, "
                f"{type(energy).__name__} has {kinds[energy.continuous]} ones: choose a posterior that fits the model."
            )
        divergence.check(posterior)
        self.posterior, self.divergence, self.objective = posterior, divergence, objective
        self.n_steps, self.optimizer = n_steps, optimizer
        self.view = view or (lambda theta: bind(energy, theta))

    def level(self) -> Level:
        """The level ``lower``, which moves ``phi``."""
        return Level("lower", "phi", self.n_steps, self.optimizer, self._draws, self._gradient)

    def noise(self, v: Tensor, n: int, generator: torch.Generator) -> dict[str, Any]:
        """Noise of n evaluations of G."""
        return {
            "data": {} if self.objective is None else self.objective.lower_noise(v, (n,), generator),
            "latent": self.divergence.noise(self.posterior, v, (n,), generator),
        }

    def points(self, v: Tensor, noise: Any, i: int) -> tuple[Tensor, Tensor | float]:
        """Where G is evaluated with the i-th draw of noise, and the weight of each point there."""
        if self.objective is None:
            return v, 1.0
        data = {name: value[i] for name, value in noise["data"].items()}
        return self.objective.perturb(v, data), self.objective.lower_weight(data)

    def loss(self, theta: Params, phi: Params, v: Tensor, noise: Any, i: int) -> Tensor:
        """G per example with the i-th draw of noise, shape (B,)."""
        points, weight = self.points(v, noise, i)
        posterior = bind(self.posterior, phi)
        return weight * self.divergence.loss(self.view(theta), posterior, points, noise["latent"][i])

    def _draws(self, v: Tensor, generator: torch.Generator) -> dict[str, Any]:
        return self.noise(v, self.n_steps, generator)

    def _gradient(self, situation: TrainState, v: Tensor, noise: Any, step: int) -> Gradient:
        theta = situation.params["theta"]
        grads, loss = grad_and_value(lambda phi: self.loss(theta, phi, v, noise, step).mean())(situation.params["phi"])
        return Gradient(loss, grads)
