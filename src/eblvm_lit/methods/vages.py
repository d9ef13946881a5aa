"""VaGES: score matching with variational estimates of the score and of its gradient with respect to theta."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import NonNegativeInt
from torch import Tensor

from eblvm_lit.core.functional import Params, bind, detached, grad
from eblvm_lit.core.ranges import Seed
from eblvm_lit.divergences.base import Divergence
from eblvm_lit.energies.base import Energy, refuse_bits
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.loss_method import LossMethod
from eblvm_lit.methods.parts import MethodParts
from eblvm_lit.methods.posterior_fit import LowerNoise
from eblvm_lit.methods.state import TrainState
from eblvm_lit.objectives.base import Objective
from eblvm_lit.optimizers.base import Optimizer
from eblvm_lit.posteriors.base import Posterior
from eblvm_lit.scores.variational import VariationalFunction, VariationalScore

__all__ = ["VaGES"]


class VaGES(LossMethod):
    r"""A method that minimises a score-based objective with variational estimates of the score and its gradient.

    Both the score of the model's marginal and the theta-gradient of this score are estimated with particles:

    .. math:: \nabla_\theta J = E_v\, [\partial s(v) / \partial \theta]^\top z, \quad
        z = \partial (\text{loss}) / \partial s \approx z(\mathrm{VaES}(v)), \quad
        \partial s(v) / \partial \theta \approx \mathrm{VaGES}(v)

    An iteration makes K steps on phi that decrease the divergence of q(h|v) from p(h|v), and then one step on theta
    along the estimated gradient, without unrolling. Every objective that is a function of the score's values can be
    used. Reference: Bao et al. 2021, section 3 and Algorithm 1.

    Args:
        energy: The model, with the energy E(v, h; theta).
        objective: The objective J, a function of the score's values only.
        score: The estimator of the score (VaES) and of its theta-gradient (VaGES), with the source of their particles.
        optimizer: The optimizer of theta in the upper level.
        posterior: The posterior q(h|v; phi); None if the particles come from p(h|v) itself.
        divergence: The divergence of q from p that the lower level minimises; None if there is no q.
        n_lower_steps: The number K of steps on phi in each iteration.
        lower_optimizer: The optimizer of phi in the lower level; that of the upper level if not given.
        lower_noise: ``fresh``, as in the paper, or ``shared``, as in :class:`~eblvm_lit.methods.bism.BiSM`.
        seed: The seed of all random numbers.
        compile: Whether to compile the iteration; ``auto`` compiles it only in runs long enough to gain from it.

    Raises:
        ConfigError: If the objective differentiates the score, or if the components are incompatible.

    Example:
        >>> from eblvm_lit.divergences.kl import KL
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.objectives.dsm import DSM
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> from eblvm_lit.posteriors.bernoulli import BernoulliPosterior
        >>> vages = VaGES(
        ...     energy=GRBM(v_dim=2, h_dim=3), posterior=BernoulliPosterior(v_dim=2, h_dim=3), divergence=KL(),
        ...     objective=DSM(noise_std=0.1), score=VariationalScore(n_particles=2), optimizer=Adam(lr=1e-3))
        >>> list(vages.param_groups())
        ['lower', 'upper']
    """

    def __init__(
        self,
        *,
        energy: Energy,
        objective: Objective,
        score: VariationalScore,
        optimizer: Optimizer,
        posterior: Posterior | None = None,
        divergence: Divergence | None = None,
        n_lower_steps: NonNegativeInt = 5,
        lower_optimizer: Optimizer | None = None,
        lower_noise: LowerNoise = "fresh",
        seed: Seed = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(energy=energy, optimizer=optimizer, seed=seed, compile=compile)
        if not objective.pointwise:
            raise ConfigError(
                f"VaGES cannot estimate the derivative of the score by v, which {type(objective).__name__} needs: use "
                "objective=dsm, mdsm or ksd, or method=bism."
            )
        refuse_bits(energy, type(self).__name__)
        score.check(energy)
        if score.needs_posterior and (posterior is None or divergence is None):
            raise ConfigError(f"{type(score.particles).__name__} need a posterior, and a divergence that fits it.")
        fitted = (posterior, divergence) if score.needs_posterior else (None, None)
        self.objective = objective
        self.score = score
        self.fit_posterior(*fitted, n_lower_steps, lower_optimizer, objective, lower_noise)

    @property
    def title(self) -> str:
        """Return a readable name of the method, with its objective and the numbers of latents and of lower steps."""
        name = type(self.objective).__name__
        words = self.objective.words
        numbers = f"L = {self.score.n_particles}, K = {self.n_lower_steps}"
        return f"VaGES-{name}: {words} with variational estimates, {numbers}"

    @property
    def parts(self) -> MethodParts:
        """Return the energy, the objective and, if there is a posterior, the posterior and its divergence."""
        energy = self.objective.of_data(self.energy)
        posterior = None if self.posterior is None else self.objective.of_data(self.posterior)
        return super().parts._replace(energy=energy, posterior=posterior, objective=self.objective)

    def share(self, theta: Params, v: Tensor, noise: dict[str, Any]) -> tuple[Params, dict[str, Any]]:
        """Share the upper level's perturbed data with the lower level if ``lower_noise`` is ``shared``.

        See :meth:`~eblvm_lit.methods.posterior_fit.PosteriorFit.share`.
        """
        return (theta, noise) if self.fit is None else self.fit.share(theta, v, noise)

    def iteration(self, state: TrainState, v: Tensor, noise: dict[str, Any]) -> TrainState:
        """Run one iteration of Bao et al. 2021, Algorithm 1."""
        theta, noise = self.share(state.theta, v, noise)
        # phi <- phi - alpha dG(theta, phi)/dphi, K times
        state = self.fitted(state.at(theta=detached(theta)), v, noise).at(theta=state.theta)
        own = noise[self.level]
        objective = self.objective.on_minibatch(state.minibatch)
        points = own["points"] if "points" in own else objective.perturb(v, own["data"])
        score, s, loss = self.estimate(theta, state, points, own)  # s = VaES(v), with particles from q(h|v; phi)
        z = objective.cotangent(s, points, own["data"])  # z = dJ/ds at s

        def product(theta: Params) -> Tensor:  # the theta-gradient of this product is VaGES(v)' z
            return score.product(bind(self.energy, theta), points, z).mean()

        diagnostics = self.score.particles.diagnostics(score.h, state.minibatch)
        gradient = grad(product)(theta)
        return self.update(state, self.level, loss.mean(), gradient, diagnostics)  # theta <- theta - beta VaGES(v)' z

    def estimate(
        self, theta: Params, state: TrainState, points: Tensor, noise: Any
    ) -> tuple[VariationalFunction, Tensor, Tensor]:
        """Return the score estimator, its estimate of the score at the perturbed data, and each example's loss (B,)."""
        posterior = self.posterior_at(state)
        score = self.score.function(bind(self.energy, theta), posterior, points, noise["latent"])
        s = score(points).detach()
        loss = self.objective.on_minibatch(state.minibatch).loss(lambda x: s, points, noise["data"])  # noqa: ARG005
        return score, s, loss

    def noise(self, v: Tensor, generator: torch.Generator) -> dict[str, Any]:
        """Draw the random numbers that one step on theta needs."""
        data = self.objective.noise(v, (), generator)
        return {"data": data, "latent": self.score.noise(self.energy, self.posterior, v, generator)}

    def loss(self, state: TrainState, v: Tensor, noise: Any) -> Tensor:
        """Compute the objective for each example, shape (B,), with the score estimated by VaES."""
        return self.estimate(state.theta, state, self.objective.perturb(v, noise["data"]), noise)[2]

    def memory_hints(self) -> list[str]:
        """Return advice on how to reduce the memory of an iteration; the last advice is to draw fewer latents."""
        return [*super().memory_hints(), f"lower score.n_particles (L={self.score.n_particles})"]

    def failure_hint(self, quantity: str) -> str | None:
        """Return advice if ``quantity`` shows that the refinement of latents diverges, or None otherwise."""
        return self.score.particles.failure_hint() if quantity == "refined_rms" else None
