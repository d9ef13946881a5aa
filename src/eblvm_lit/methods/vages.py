"""Variational (gradient) estimates of the score function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from eblvm_lit.core.autograd import grad
from eblvm_lit.core.functional import Params, bind
from eblvm_lit.divergences.base import Divergence
from eblvm_lit.energies.base import Energy
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.base import Method
from eblvm_lit.methods.levels import Gradient, Level, TrainState
from eblvm_lit.methods.posterior_fit import PosteriorFit
from eblvm_lit.objectives.base import Objective
from eblvm_lit.optimizers.base import Optimizer
from eblvm_lit.posteriors.base import Posterior
from eblvm_lit.scores.variational import VariationalScore

__all__ = ["VaGES"]


class VaGES(Method):
    r"""Score-based objectives of the model's marginal with variational estimates of score and gradient.

    .. math:: \nabla_\theta J = E_v\, [\partial s(v) / \partial \theta]^\top z, \quad
        z = \partial (\text{loss}) / \partial s \approx z(\mathrm{VaES}(v)), \quad
        \partial s(v) / \partial \theta \approx \mathrm{VaGES}(v)

    An iteration is K steps on phi down the divergence of q(h|v) from p(h|v); then one step on theta along the
    estimate, without unrolling. Serves every objective that is a function of the score's values. Reference: Bao et
    al. 2021, section 3 and Algorithm 1.

    Args:
        energy: The model, E(v, h; theta).
        objective: J, a functional of the score's values.
        score: VaES and VaGES, and where their particles come from.
        optimizer: Rule of the upper level.
        posterior: q(h|v; phi); null where the particles come from p(h|v) itself.
        divergence: Of q from p; null where there is no q.
        n_lower_steps: K.
        lower_optimizer: Rule of the lower level; the upper one's if not given.
        seed: Seed of all noise.
        compile: Whether the iteration is compiled.

    Raises:
        ConfigError: For an objective that differentiates the score, a negative K, or parts that do not fit together.

    Example:
        >>> from eblvm_lit.divergences.kl import KL
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.objectives.dsm import DSM
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> from eblvm_lit.posteriors.bernoulli import BernoulliPosterior
        >>> vages = VaGES(
        ...     energy=GRBM(v_dim=2, h_dim=3), posterior=BernoulliPosterior(v_dim=2, h_dim=3), divergence=KL(),
        ...     objective=DSM(noise_std=0.1), score=VariationalScore(n_particles=2), optimizer=Adam(lr=1e-3))
        >>> [(level.name, level.n_steps) for level in vages.levels()]
        [('lower', 5), ('upper', 1)]
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
        n_lower_steps: int = 5,
        lower_optimizer: Optimizer | None = None,
        seed: int = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(seed=seed, compile=compile)
        if not objective.pointwise:
            raise ConfigError(
                f"VaGES estimates the score and its theta-gradient, and {type(objective).__name__} differentiates the "
                "score by v, of which there is no estimate: use objective=dsm, mdsm or ksd, or method=bism."
            )
        score.check(energy)
        self.energy, self.objective, self.score, self.optimizer = energy, objective, score, optimizer
        self.posterior, self.divergence, self.lower = None, None, None
        if score.particles.needs_posterior:
            if posterior is None or divergence is None:
                raise ConfigError(f"{type(score.particles).__name__} need a posterior and a divergence to fit it by.")
            self.posterior, self.divergence = posterior, divergence
            self.lower = PosteriorFit(
                energy=energy,
                posterior=posterior,
                divergence=divergence,
                n_steps=n_lower_steps,
                optimizer=lower_optimizer or optimizer,
                objective=objective,
            )

    def players(self) -> dict[str, torch.nn.Module]:
        """The model, and the posterior if there is one."""
        return {"theta": self.energy} if self.posterior is None else {"theta": self.energy, "phi": self.posterior}

    def levels(self) -> Sequence[Level]:
        """K steps on phi, if there is one; then one on theta."""
        upper = Level("upper", "theta", 1, self.optimizer, self.upper_noise, self._upper_gradient)
        return [upper] if self.lower is None else [self.lower.level(), upper]

    def check_batch_size(self, n: int) -> None:
        """Refuse what the objective refuses."""
        self.objective.check_batch_size(n)

    def upper_noise(self, v: Tensor, generator: torch.Generator) -> dict[str, Any]:
        """The random numbers of one upper step."""
        return {
            "data": self.objective.noise(v, (), generator),
            "latent": self.score.noise(self.energy, self.posterior, v, generator),
        }

    def upper_gradient(self, theta: Params, phi: Params | None, v: Tensor, noise: Any) -> Gradient:
        """The loss at VaES, and the gradient's estimate."""
        energy = bind(self.energy, theta)
        posterior = None if phi is None else bind(self.posterior, phi)
        points = self.objective.perturb(v, noise["data"])
        sets = self.score.draw(energy, posterior, points, noise["latent"])
        s = self.score.value(energy, posterior, points, sets)
        z = self.objective.cotangent(s, points, noise["data"])

        def product(theta: Params) -> Tensor:
            return self.score.product(bind(self.energy, theta), points, z, sets).mean()

        loss = self.objective.loss(lambda x: s, points, noise["data"])  # noqa: ARG005 - x is the points
        return Gradient(loss.mean(), grad(product)(theta), self.score.particles.diagnostics(sets[0]))

    def _upper_gradient(self, situation: TrainState, v: Tensor, noise: Any, step: int) -> Gradient:  # noqa: ARG002
        return self.upper_gradient(situation.params["theta"], situation.params.get("phi"), v, noise)

    def validation_loss(self, v: Tensor, generator: torch.Generator) -> Tensor:
        """The objective of VaES, per example, shape (B,)."""
        noise = self.upper_noise(v, generator)
        points = self.objective.perturb(v, noise["data"])
        sets = self.score.draw(self.energy, self.posterior, points, noise["latent"])
        s = self.score.value(self.energy, self.posterior, points, sets)
        return self.objective.loss(lambda x: s, points, noise["data"])  # noqa: ARG005

    def memory_hints(self) -> list[str]:
        """Fewer latents, too."""
        return [*super().memory_hints(), f"lower score.n_particles (L={self.score.n_particles})"]

    def failure_hint(self, quantity: str) -> str | None:
        """What helps where the refinement of latents diverges."""
        return self.score.particles.failure_hint() if quantity == "refined_rms" else None
