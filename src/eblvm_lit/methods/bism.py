"""Bi-level score matching."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from eblvm_lit.core.functional import Params, bind
from eblvm_lit.divergences.base import Divergence
from eblvm_lit.energies.base import Energy
from eblvm_lit.errors import ConfigError
from eblvm_lit.hypergradients.base import BilevelProblem, Hypergradient
from eblvm_lit.hypergradients.unroll import Unroll
from eblvm_lit.methods.base import Method
from eblvm_lit.methods.levels import Gradient, Level, TrainState
from eblvm_lit.methods.posterior_fit import PosteriorFit
from eblvm_lit.objectives.base import Objective
from eblvm_lit.optimizers.base import Optimizer
from eblvm_lit.posteriors.base import Law, Posterior
from eblvm_lit.scores.bilevel import BilevelScore

__all__ = ["BiSM"]


class BiSM(Method):
    r"""Bi-level score matching: BiSSM, BiDSM, BiMDSM with the objective of that name.

    .. math:: \min_\theta J(\theta, \phi^*(\theta)), \quad \phi^*(\theta) = \arg\min_\phi G(\theta, \phi)

    An iteration is K steps on phi down G, the divergence of q(h|v) from p(h|v) at perturbed data with fresh noise in
    each step; then one step on theta along the hypergradient of J, the objective of the surrogate score. Reference:
    Bao et al. 2020, Algorithm 1.

    Args:
        energy: The model, E(v, h; theta).
        posterior: q(h|v; phi).
        objective: J, a functional of the score.
        divergence: G.
        n_lower_steps: K.
        n_unroll: N, for the published hypergradient; or null.
        hypergradient: Another way to have dJ/dtheta through phi, instead of ``n_unroll``.
        optimizer: Rule of the upper level.
        lower_optimizer: Rule of the lower level; the upper one's if not given.
        seed: Seed of all noise.
        compile: Whether the iteration is compiled.

    Raises:
        ConfigError: For a negative K or N, or parts that do not fit together.

    Example:
        >>> from eblvm_lit.divergences.kl import KL
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.objectives.dsm import DSM
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> from eblvm_lit.posteriors.bernoulli import BernoulliPosterior
        >>> bidsm = BiSM(
        ...     energy=GRBM(v_dim=2, h_dim=3), posterior=BernoulliPosterior(v_dim=2, h_dim=3),
        ...     objective=DSM(noise_std=0.1), divergence=KL(), n_lower_steps=5, n_unroll=5, optimizer=Adam(lr=1e-3))
        >>> [(level.name, level.n_steps) for level in bidsm.levels()], bidsm.inner_steps()
        ([('lower', 5), ('upper', 1)], 11)
    """

    def __init__(
        self,
        *,
        energy: Energy,
        posterior: Posterior,
        objective: Objective,
        divergence: Divergence,
        optimizer: Optimizer,
        n_lower_steps: int = 5,
        n_unroll: int | None = None,
        hypergradient: Hypergradient | None = None,
        lower_optimizer: Optimizer | None = None,
        seed: int = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(seed=seed, compile=compile)
        if (n_unroll is None) == (hypergradient is None):
            raise ConfigError("A bi-level method needs either n_unroll (N) or another hypergradient, and not both.")
        if hypergradient is not None:
            hypergradient.check(divergence)
        self.energy, self.posterior = energy, posterior
        self.objective, self.divergence = objective, divergence
        self.hypergradient = Unroll(n_unroll=n_unroll) if hypergradient is None else hypergradient
        self.optimizer = optimizer
        self.lower = PosteriorFit(
            energy=energy,
            posterior=posterior,
            divergence=divergence,
            n_steps=n_lower_steps,
            optimizer=lower_optimizer or optimizer,
            objective=objective,
        )

    def players(self) -> dict[str, torch.nn.Module]:
        """The model and the posterior."""
        return {"theta": self.energy, "phi": self.posterior}

    def levels(self) -> Sequence[Level]:
        """K steps on phi, then one on theta."""
        return [self.lower.level(), Level("upper", "theta", 1, self.optimizer, self._upper_noise, self._upper_gradient)]

    def check_batch_size(self, n: int) -> None:
        """Refuse what the objective refuses."""
        self.objective.check_batch_size(n)

    def memory_hints(self) -> list[str]:
        """Those of the hypergradient, too."""
        return [*self.hypergradient.memory_hints(), *super().memory_hints()]

    def inner_steps(self) -> int:
        """K + N + 1."""
        return self.lower.n_steps + self.hypergradient.n_draws + 1

    def _upper_noise(self, v: Tensor, generator: torch.Generator) -> dict[str, Any]:
        return {
            "data": self.objective.noise(v, (), generator),
            "latent": self.posterior.noise((), v, generator),
            "unrolled": self.lower.noise(v, self.hypergradient.n_draws, generator),
        }

    def upper_loss(self, theta: Params, phi: Params, v: Tensor, noise: Any) -> Tensor:
        """J per example, shape (B,)."""
        points = self.objective.perturb(v, noise["data"])
        score = BilevelScore(bind(self.energy, theta), bind(self.posterior, phi), points, noise["latent"])
        return self.objective.loss(score, points, noise["data"])

    def _upper_gradient(self, situation: TrainState, v: Tensor, noise: Any, step: int) -> Gradient:  # noqa: ARG002
        problem = BilevelProblem(
            upper=lambda theta, phi: self.upper_loss(theta, phi, v, noise).mean(),
            lower=lambda theta, phi, i: self.lower.loss(theta, phi, v, noise["unrolled"], i).mean(),
            optimizer=self.lower.optimizer,
            state=situation.states["lower"],
            lr=situation.lrs["lower"],
            information=lambda phi, w: self.information_product(phi, w, v, noise["unrolled"]),
        )
        loss, grads = self.hypergradient(problem, situation.params["theta"], situation.params["phi"])
        return Gradient(loss, grads)

    def information_product(self, phi: Params, w: Params, v: Tensor, noise: Any) -> Params:
        r"""Fisher information of q times a vector: :math:`E_v [J^\top \mathcal{I} J w]`, J the Jacobian in phi."""
        points, weight = self.lower.points(v, noise, 0)
        weight = torch.as_tensor(weight).expand(len(v)).unsqueeze(-1) / len(v)

        def law(phi: Params) -> Law:
            return bind(self.posterior, phi).law(points)

        at, slope = torch.func.jvp(law, (phi,), (w,))
        information = self.posterior.information_law(at)
        cotangent = tuple(weight * i * s for i, s in zip(information, slope, strict=True))
        return torch.func.vjp(law, phi)[1](cotangent)[0]

    def validation_loss(self, v: Tensor, generator: torch.Generator) -> Tensor:
        """J at the live phi, per example, shape (B,)."""
        noise = {
            "data": self.objective.noise(v, (), generator),
            "latent": self.posterior.noise((), v, generator),
        }
        points = self.objective.perturb(v, noise["data"])
        score = BilevelScore(self.energy, self.posterior, points, noise["latent"])
        return self.objective.loss(score, points, noise["data"])
