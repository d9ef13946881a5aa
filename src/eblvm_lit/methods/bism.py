"""The method of bi-level score matching, with its variants BiSSM, BiDSM and BiMDSM."""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any, Literal, cast

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from eblvm_lit.core.functional import Params, bind, detached, params_of
from eblvm_lit.core.minibatch import WHOLE, Minibatch
from eblvm_lit.core.ranges import Seed
from eblvm_lit.divergences.base import Divergence
from eblvm_lit.energies.base import Energy, refuse_bits
from eblvm_lit.errors import ConfigError
from eblvm_lit.hypergradients.base import BilevelProblem, Hypergradient, LowerLevel
from eblvm_lit.hypergradients.unroll import Unroll
from eblvm_lit.methods.base import Method
from eblvm_lit.methods.parts import MethodParts
from eblvm_lit.methods.posterior_fit import LowerNoise, PosteriorFit
from eblvm_lit.methods.state import ParamGroup, TrainState
from eblvm_lit.objectives.base import Objective
from eblvm_lit.optimizers.base import Optimizer
from eblvm_lit.posteriors.base import Posterior
from eblvm_lit.scores.bilevel import BilevelScore, Refinement

__all__ = ["BiSM"]


class BiSM(Method):
    r"""Bi-level score matching, which is called BiSSM, BiDSM or BiMDSM depending on the objective.

    .. math:: \min_\theta J(\theta, \phi^*(\theta)), \quad \phi^*(\theta) = \arg\min_\phi G(\theta, \phi)

    G is the divergence of q(h|v) from p(h|v) at perturbed data, and J is the objective at the surrogate score.
    Reference: Bao et al. 2020, Algorithm 1, which :meth:`iteration` implements.

    Args:
        energy: The model, with the energy E(v, h; theta).
        posterior: The posterior q(h|v; phi).
        objective: The upper-level objective J, a functional of the score.
        divergence: The lower-level divergence, which G averages over the data.
        n_lower_steps: The number K of steps on phi in each iteration.
        n_unroll: The number N of unrolled steps, for the paper's hypergradient; None if ``hypergradient`` is given.
        n_particles: The number L of latents drawn for each v. Each gives its own surrogate score, and J is averaged
            over them. The paper uses one; the Frey face runs in the code of Bao et al. 2021 use 2 to 10.
        hypergradient: Another estimator of dJ(theta, phi*(theta))/dtheta, in place of ``n_unroll``.
        optimizer: The optimizer of theta in the upper level.
        lower_optimizer: The optimizer of phi in the lower level; that of the upper level if not given.
        lower_noise: With ``fresh``, as in the paper, each lower step perturbs the data with new noise, which costs one
            more pass through the model's network of v. With ``shared`` the K lower steps and the unrolled steps use
            the perturbed data of the upper level, so that the network of v is evaluated only once in an iteration.
            In either case each step draws new latents.
        seed: The seed of all random numbers.
        compile: Whether to compile the iteration; ``auto`` compiles it only in runs long enough to gain from it.

    Raises:
        ConfigError: If the components are incompatible.

    Example:
        >>> from eblvm_lit.divergences.kl import KL
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.objectives.dsm import DSM
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> from eblvm_lit.posteriors.bernoulli import BernoulliPosterior
        >>> bidsm = BiSM(
        ...     energy=GRBM(v_dim=2, h_dim=3), posterior=BernoulliPosterior(v_dim=2, h_dim=3),
        ...     objective=DSM(noise_std=0.1), divergence=KL(), n_lower_steps=5, n_unroll=5, optimizer=Adam(lr=1e-3))
        >>> list(bidsm.param_groups())
        ['lower', 'upper']
    """

    def __init__(
        self,
        *,
        energy: Energy,
        posterior: Posterior,
        objective: Objective,
        divergence: Divergence,
        optimizer: Optimizer,
        n_lower_steps: NonNegativeInt = 5,
        n_unroll: NonNegativeInt | None = None,
        n_particles: PositiveInt = 1,
        hypergradient: Hypergradient | None = None,
        lower_optimizer: Optimizer | None = None,
        lower_noise: LowerNoise = "fresh",
        seed: Seed = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(seed=seed, compile=compile)
        if (n_unroll is None) == (hypergradient is None):
            raise ConfigError("A bi-level method needs either n_unroll (N) or another hypergradient, and not both.")
        refuse_bits(energy, type(self).__name__)
        self.energy = energy
        self.posterior = posterior
        self.objective = objective
        self.divergence = divergence
        self.hypergradient: Hypergradient = hypergradient or Unroll(n_unroll=cast(int, n_unroll))
        self.optimizer = optimizer
        self.lower_optimizer = lower_optimizer or optimizer
        self.n_lower_steps = n_lower_steps
        self.n_particles = n_particles
        self.lower_noise = lower_noise
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
        """Return a readable name of the method, with the objective, the number K of steps and the hypergradient."""
        name = type(self.objective).__name__
        return f"Bi{name}: bi-level {self.objective.words}, K = {self.n_lower_steps}, {self.hypergradient.title}"

    def networks(self) -> dict[str, torch.nn.Module]:
        """Return the model ``theta`` and the posterior ``phi``."""
        return {"theta": self.energy, "phi": self.posterior}

    def param_groups(self) -> dict[str, ParamGroup]:
        """Return the parameter groups: phi, trained in the lower level, and theta, trained in the upper level."""
        return {"lower": ParamGroup("phi", self.lower_optimizer), "upper": ParamGroup("theta", self.optimizer)}

    @cached_property
    def rates(self) -> dict[str, tuple[ParamGroup, int]]:
        """Return entries for the learning rates of both groups, and for unrolled steps if their rate is different."""
        ahead = self.hypergradient.lr_ahead
        return {**super().rates, "unrolled": (self.groups["lower"], ahead)} if ahead else super().rates

    @property
    def parts(self) -> MethodParts:
        """Return the energy, posterior, objective and divergence."""
        energy = self.objective.of_data(self.energy)
        return MethodParts(energy, self.objective.of_data(self.posterior), None, self.objective, self.divergence)

    def persistent_buffers(self) -> dict[str, Tensor]:
        """Return the tensors that the hypergradient carries over from one iteration to the next."""
        return {name: self.get_buffer(name) for name in self._kept}

    def draw_noise(self, v: Tensor, generator: torch.Generator) -> dict[str, Any]:
        """Draw the random numbers of the K lower steps, of the upper loss J, and of the hypergradient."""
        return {
            "lower": self.fit.noise(v, self.n_lower_steps, generator),
            "upper": {
                "data": self.objective.noise(v, (), generator),
                "latent": self.posterior.noise((self.n_particles,), v, generator),
            },
            "hypergradient": {
                **self.fit.noise(v, self.hypergradient.n_draws, generator),
                "refined": self.posterior.noise((self.hypergradient.n_latents,), v, generator),
            },
        }

    def iteration(self, state: TrainState, v: Tensor, noise: dict[str, Any]) -> TrainState:
        """Run one iteration of Bao et al. 2020, Algorithm 1."""
        theta, noise = self.fit.share(state.theta, v, noise)
        for k in range(self.n_lower_steps):  # phi <- phi - alpha dG(theta, phi)/dphi, K times
            lower_loss = partial(self.fit.loss, detached(theta), v=v, noise=noise["lower"], i=k)
            state = self.descend(state, "lower", lower_loss)
        problem = self.bilevel_problem(state, v, noise)
        # The hypergradient is dJ(theta, phi^N(theta))/dtheta. Here phi^0 = phi, and
        # phi^n = phi^(n-1) - alpha dG(theta, phi^(n-1))/dphi for n = 1 to N.
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
        """Compute the upper loss J for each example, shape (B,), as the mean over the L sampled latents.

        If a function ``refine`` is given, q(h|v; phi) is replaced by its refined version before the latents are drawn.
        """
        objective = self.objective if minibatch is WHOLE else self.objective.on_minibatch(minibatch)
        points = noise["points"] if "points" in noise else objective.perturb(v, noise["data"])
        energy = bind(self.energy, theta)
        posterior = bind(self.posterior, phi)
        scores = (BilevelScore(energy, posterior, points, eps, refine) for eps in noise["latent"])
        losses = [objective.loss(score, points, noise["data"]) for score in scores]
        return losses[0] if len(losses) == 1 else torch.stack(losses).mean(0)

    def bilevel_problem(self, state: TrainState, v: Tensor, noise: dict[str, Any]) -> BilevelProblem:
        """Return the inputs of the hypergradient for one minibatch, such as the upper loss J and the lower loss G."""
        upper = noise["upper"]
        own = noise["hypergradient"]
        return BilevelProblem(
            upper=lambda theta, phi, refine=None: self.upper_loss(theta, phi, v, upper, state.minibatch, refine).mean(),
            lower=lambda theta, phi, i: self.fit.loss(theta, phi, v, own, i).mean(),
            optimizer=self.lower_optimizer,
            state=state.optimizers["lower"],
            lr=state.lrs["unrolled" if self.hypergradient.lr_ahead else "lower"],
            information=lambda phi, w: self.fit.information_product(phi, w, v, own),
            mean=None if state.minibatch is WHOLE else state.minibatch.mean_of,
            energy=self.energy,
            posterior=self.posterior,
            latent_noise=own["refined"],
        )

    def validation_loss(self, v: Tensor, generator: torch.Generator) -> Tensor:
        """Compute the upper loss J of each example at the current theta and phi, shape (B,)."""
        live = self.live_state()
        data = self.objective.noise(v, (), generator)
        noise = {"data": data, "latent": self.posterior.noise((self.n_particles,), v, generator)}
        return self.upper_loss(live.theta, live.phi, v, noise)

    def float32_reason(self) -> str | None:
        """Return the reason for using float32: derivatives of the lower level are inaccurate in bfloat16.

        In bfloat16 the relative error of the hypergradient was 16 % for N = 2, and 1 % for N = 0.
        """
        if self.hypergradient.n_draws > 0:
            return "as the hypergradient differentiates the lower level, which bfloat16 rounds too much"
        return super().float32_reason()

    def memory_hints(self) -> list[str]:
        """Return advice on how to reduce the memory of an iteration, with the advice on the hypergradient first."""
        return [*self.hypergradient.memory_hints(), *super().memory_hints()]
