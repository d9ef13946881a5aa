"""Bi-level score matching."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, Literal, cast

import torch
from torch import Tensor

from eblvm_lit.core.functional import Params, bind, held, params_of
from eblvm_lit.core.minibatch import WHOLE, Minibatch
from eblvm_lit.divergences.base import Divergence
from eblvm_lit.energies.base import Energy
from eblvm_lit.errors import ConfigError
from eblvm_lit.hypergradients.base import BilevelProblem, Hypergradient, LowerLevel
from eblvm_lit.hypergradients.unroll import Unroll
from eblvm_lit.methods.base import Method, MethodParts, ParamGroup, TrainState
from eblvm_lit.objectives.base import Noise, Objective
from eblvm_lit.optimizers.base import Optimizer
from eblvm_lit.posteriors.base import DistributionParams, Posterior
from eblvm_lit.scores.bilevel import BilevelScore, Refinement

__all__ = ["BiSM", "LowerNoise", "PosteriorFit"]

LowerNoise = Literal["fresh", "shared"]


class PosteriorFit:
    r"""G, a divergence of q(h|v; phi) from p(h|v; theta), which K steps on phi descend with fresh noise in each.

    .. math:: G(\theta, \phi) = E_v\, w(v)\, D(q(h|v; \phi), p(h|v; \theta))

    v are the points at which the upper level needs q: data, perturbed as its objective perturbs them. Reference: Bao
    et al. 2020, Algorithm 1; Bao et al. 2021, section 3.

    Args:
        energy: The model.
        posterior: q.
        divergence: D.
        n_steps: K.
        objective: Perturbs the data and gives the weight w; data are left as they are if not given.
        view: The model as a function of theta; ``bind(energy, theta)`` if not given.
        lower_noise: ``fresh``, or ``shared``: the upper level's perturbed data serve all steps; see :meth:`share`.

    Raises:
        ConfigError: For a negative K, another lower_noise, or a posterior that fits neither the model nor the
            divergence.

    Example:
        >>> from eblvm_lit.core.functional import params_of
        >>> from eblvm_lit.divergences.kl import KL
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.posteriors.bernoulli import BernoulliPosterior
        >>> p, q = GRBM(v_dim=2, h_dim=3), BernoulliPosterior(v_dim=2, h_dim=3)
        >>> fit = PosteriorFit(energy=p, posterior=q, divergence=KL(), n_steps=5)
        >>> v = torch.zeros(7, 2)
        >>> fit.loss(params_of(p), params_of(q), v, fit.noise(v, 5, torch.Generator()), 0).shape
        torch.Size([7])
    """

    def __init__(
        self,
        *,
        energy: Energy,
        posterior: Posterior,
        divergence: Divergence,
        n_steps: int,
        objective: Objective | None = None,
        view: Callable[[Params], Energy] | None = None,
        lower_noise: LowerNoise = "fresh",
    ) -> None:
        if n_steps < 0:
            raise ConfigError(f"n_lower_steps (K) must be >= 0, not {n_steps}.")
        if lower_noise not in ("fresh", "shared"):
            raise ConfigError(f"method.lower_noise is 'fresh' or 'shared', not {lower_noise!r}.")
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
        self.n_steps, self.lower_noise = n_steps, lower_noise
        self.energy, self.view = energy, view

    def noise(self, v: Tensor, n: int, generator: torch.Generator) -> dict[str, Any]:
        """Noise of n evaluations of G; where the points are shared, of its latents alone."""
        objective, data = self.objective, {}
        if self.lower_noise == "fresh" and objective is not None and objective.perturbs:
            data = objective.noise(v, (n,), generator)
        return {"data": data, "latent": self.posterior.noise((n, self.divergence.n_particles), v, generator)}

    def points(self, v: Tensor, noise: Any, i: int) -> tuple[Tensor, Tensor | float]:
        """Where G is evaluated with the i-th draw of noise, and the weight of each point there."""
        if "points" in noise:  # shared ones
            return noise["points"], noise["weight"]
        if self.objective is None:
            return v, 1.0
        data = {}
        for name, value in noise["data"].items():
            data[name] = value[i]
        weight = 1.0 if self.objective.lower_weight is None else self.objective.lower_weight(data)
        return self.objective.perturb(v, data), weight

    def share(self, v: Tensor, data: Noise) -> dict[str, Any]:
        """The upper level's points and their weights, for the noise of the lower level, too."""
        points, weight = self.points(v, {"data": {name: x.unsqueeze(0) for name, x in data.items()}}, 0)
        return {"points": points, "weight": weight}

    def loss(self, theta: Params, phi: Params, v: Tensor, noise: Any, i: int) -> Tensor:
        """G per example with the i-th draw of noise, shape (B,)."""
        points, weight = self.points(v, noise, i)
        energy = bind(self.energy, theta) if self.view is None else self.view(theta)
        return weight * self.divergence.loss(energy, bind(self.posterior, phi), points, noise["latent"][i])

    def information_product(self, phi: Params, w: Params, v: Tensor, noise: Any) -> Params:
        r"""The Fisher information of q times a vector: :math:`E_v [J^\top \mathcal{I} J w]`, J the Jacobian in phi."""
        points, weight = self.points(v, noise, 0)
        weight = torch.as_tensor(weight, dtype=v.dtype, device=v.device).expand(len(v)).unsqueeze(-1) / len(v)

        def q_params(phi: Params) -> DistributionParams:
            return bind(self.posterior, phi).distribution_params(points)

        at, slope = torch.func.jvp(q_params, (phi,), (w,))[:2]
        information = self.posterior.information_given(at)
        cotangent = tuple(weight * i * s for i, s in zip(information, slope, strict=True))
        return torch.func.vjp(q_params, phi)[1](cotangent)[0]


class BiSM(Method):
    r"""Bi-level score matching: BiSSM, BiDSM, BiMDSM with the objective of that name.

    .. math:: \min_\theta J(\theta, \phi^*(\theta)), \quad \phi^*(\theta) = \arg\min_\phi G(\theta, \phi)

    G is the divergence of q(h|v) from p(h|v) at perturbed data, J the objective of the surrogate score. Reference: Bao
    et al. 2020, Algorithm 1, which is :meth:`iteration`.

    Args:
        energy: The model, E(v, h; theta).
        posterior: q(h|v; phi).
        objective: J, a functional of the score.
        divergence: G.
        n_lower_steps: K.
        n_unroll: N, for the published hypergradient; or null.
        n_particles: L, the latents of each v over which J is averaged; each gives its own surrogate score. The paper
            has one; the released Frey face grid of Bao et al. 2021 has 2 to 10.
        hypergradient: Another estimate of dJ(theta, phi*(theta))/dtheta, instead of ``n_unroll``.
        optimizer: Rule of the upper level.
        lower_optimizer: Rule of the lower level; the upper one's if not given.
        lower_noise: ``fresh``, as published: each lower step perturbs the data anew, which costs it a pass through the
            model. With ``shared`` the upper level's perturbed data serve the K lower steps and the unrolled ones, too:
            what the model computes of v alone is computed once an iteration. Latents are drawn anew in each step.
        seed: Seed of all noise.
        compile: Whether the iteration is compiled.

    Raises:
        ConfigError: For a negative K or N, no latent, or parts that do not fit together.

    Example:
        >>> from eblvm_lit.divergences.kl import KL
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.objectives.dsm import DSM
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> from eblvm_lit.posteriors.bernoulli import BernoulliPosterior
        >>> bidsm = BiSM(
        ...     energy=GRBM(v_dim=2, h_dim=3), posterior=BernoulliPosterior(v_dim=2, h_dim=3),
        ...     objective=DSM(noise_std=0.1), divergence=KL(), n_lower_steps=5, n_unroll=5, optimizer=Adam(lr=1e-3))
        >>> list(bidsm.param_groups()), bidsm.inner_steps()
        (['lower', 'upper'], 11)
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
        n_particles: int = 1,
        hypergradient: Hypergradient | None = None,
        lower_optimizer: Optimizer | None = None,
        lower_noise: LowerNoise = "fresh",
        seed: int = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(seed=seed, compile=compile)
        if (n_unroll is None) == (hypergradient is None):
            raise ConfigError("A bi-level method needs either n_unroll (N) or another hypergradient, and not both.")
        if n_particles < 1:
            raise ConfigError(f"method.n_particles (L) must be >= 1, not {n_particles}.")
        self.energy, self.posterior = energy, posterior
        self.objective, self.divergence = objective, divergence
        self.hypergradient: Hypergradient = hypergradient or Unroll(n_unroll=cast(int, n_unroll))
        self.optimizer, self.lower_optimizer = optimizer, lower_optimizer or optimizer
        self.n_lower_steps, self.n_particles, self.lower_noise = n_lower_steps, n_particles, lower_noise
        self.fit = PosteriorFit(
            energy=energy,
            posterior=posterior,
            divergence=divergence,
            n_steps=n_lower_steps,
            objective=objective,
            lower_noise=lower_noise,
        )
        self.hypergradient.check(LowerLevel(energy, posterior, divergence, self.lower_optimizer))
        kept = self.hypergradient.init_state(params_of(posterior))
        for name, value in kept.items():
            self.register_buffer(name, value)
        self._kept = list(kept)

    @property
    def title(self) -> str:
        """With its objective, K and N."""
        name, words = type(self.objective).__name__, self.objective.words
        return f"Bi{name}: bi-level {words}, K = {self.n_lower_steps}, {self.hypergradient.title}"

    def networks(self) -> dict[str, torch.nn.Module]:
        """The model and the posterior."""
        return {"theta": self.energy, "phi": self.posterior}

    def param_groups(self) -> dict[str, ParamGroup]:
        """phi in the lower level, theta in the upper one."""
        return {"lower": ParamGroup("phi", self.lower_optimizer), "upper": ParamGroup("theta", self.optimizer)}

    @cached_property
    def rates(self) -> dict[str, tuple[ParamGroup, int]]:
        """Those of both groups, and of the unrolled steps where it is another."""
        ahead = self.hypergradient.lr_ahead
        return {**super().rates, "unrolled": (self.groups["lower"], ahead)} if ahead else super().rates

    @property
    def parts(self) -> MethodParts:
        """All but a generator."""
        return MethodParts(self.energy, self.posterior, None, self.objective, self.divergence)

    def persistent_buffers(self) -> dict[str, Tensor]:
        """What the hypergradient keeps."""
        return {name: self.get_buffer(name) for name in self._kept}

    def draw_noise(self, v: Tensor, generator: torch.Generator) -> dict[str, Any]:
        """The random numbers of the K lower steps, of J, and of the hypergradient: draws of G, and its own latents."""
        return {
            "lower": self.fit.noise(v, self.n_lower_steps, generator),
            "upper": {
                "data": self.objective.noise(v, (), generator),
                "latent": self.posterior.noise((self.n_particles,), v, generator),
                "unrolled": self.fit.noise(v, self.hypergradient.n_draws, generator),
                "refined": self.posterior.noise((self.hypergradient.n_latents,), v, generator),
            },
        }

    def iteration(self, state: TrainState, v: Tensor, noise: dict[str, Any]) -> TrainState:
        """Bao et al. 2020, Algorithm 1."""
        theta, shared = state.theta, {}
        if self.lower_noise == "shared":  # the upper level's points, and one pass of the model, serve both levels
            shared = self.fit.share(v, noise["upper"]["data"])
            theta = self.energy.one_pass(theta, shared["points"])
        constant = theta if not shared else held(theta)
        for k in range(self.n_lower_steps):  # phi <- phi - alpha dG(theta, phi)/dphi, K times
            lower_loss = partial(self.fit.loss, constant, v=v, noise={**noise["lower"], **shared}, i=k)
            state = self.descend(state, "lower", lower_loss)
        problem = self.bilevel_problem(state, v, {**noise["upper"], **({"shared": shared} if shared else {})})
        # phi^0 = phi; phi^n = phi^(n-1) - alpha dG(theta, phi^(n-1))/dphi, n = 1..N; dJ(theta, phi^N(theta))/dtheta
        loss, hypergradient, kept = self.hypergradient(problem, theta, state.phi, state.buffers)
        # theta <- theta - beta dJ(theta, phi^N(theta))/dtheta
        return self.update(state, "upper", loss, hypergradient, buffers=kept)

    def upper_loss(
        self,
        theta: Params,
        phi: Params,
        v: Tensor,
        noise: Any,
        minibatch: Minibatch = WHOLE,
        refine: Refinement | None = None,
    ) -> Tensor:
        """J per example, averaged over L latents, shape (B,); of q(h|v; phi) after ``refine``, if there is one."""
        objective = self.objective if minibatch is WHOLE else self.objective.on_minibatch(minibatch)
        points = noise["shared"]["points"] if "shared" in noise else objective.perturb(v, noise["data"])
        energy, posterior, losses = bind(self.energy, theta), bind(self.posterior, phi), []
        for eps in noise["latent"]:
            losses.append(objective.loss(BilevelScore(energy, posterior, points, eps, refine), points, noise["data"]))
        return losses[0] if len(losses) == 1 else torch.stack(losses).mean(0)

    def bilevel_problem(self, state: TrainState, v: Tensor, noise: Any) -> BilevelProblem:
        """J and G on a minibatch, with what a hypergradient needs of the lower level."""
        unrolled = noise["unrolled"]
        if self.lower_noise == "shared":
            shared = noise["shared"] if "shared" in noise else self.fit.share(v, noise["data"])
            noise, unrolled = {**noise, "shared": shared}, {**unrolled, **shared}
        return BilevelProblem(
            upper=lambda theta, phi, refine=None: self.upper_loss(theta, phi, v, noise, state.minibatch, refine).mean(),
            lower=lambda theta, phi, i: self.fit.loss(theta, phi, v, unrolled, i).mean(),
            optimizer=self.lower_optimizer,
            state=state.optimizers["lower"],
            lr=state.lrs["unrolled" if self.hypergradient.lr_ahead else "lower"],
            information=lambda phi, w: self.fit.information_product(phi, w, v, unrolled),
            mean=None if state.minibatch is WHOLE else state.minibatch.mean_of,
            energy=self.energy,
            posterior=self.posterior,
            latent_noise=noise["refined"],
        )

    def validation_loss(self, v: Tensor, generator: torch.Generator) -> Tensor:
        """J at the live phi, per example, shape (B,)."""
        live, data = self.live_state(), self.objective.noise(v, (), generator)
        noise = {"data": data, "latent": self.posterior.noise((self.n_particles,), v, generator)}
        return self.upper_loss(live.theta, live.phi, v, noise)

    def inner_steps(self) -> int:
        """K + N + 1."""
        return self.n_lower_steps + self.hypergradient.n_draws + 1

    def check_batch_size(self, n: int) -> None:
        """Refuse what the objective refuses."""
        self.objective.check_batch_size(n)

    def float32_reason(self) -> str | None:
        """Second derivatives: in bfloat16 the hypergradient of N = 2 was off by 16 %, that of N = 0 by 1 %."""
        if self.hypergradient.n_draws > 0:
            return "as the hypergradient differentiates the lower level, which bfloat16 rounds too much"
        return self.objective.float32_reason()

    def memory_hints(self) -> list[str]:
        """Those of the hypergradient, too."""
        return [*self.hypergradient.memory_hints(), *super().memory_hints()]
