"""Critics: the Fisher divergence of data from a model, estimated by training a critic of the model's score."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from eblvm_lit.core.functional import Params, bind, grad
from eblvm_lit.core.ranges import Seed
from eblvm_lit.core.tensors import sum_event
from eblvm_lit.divergences.base import Divergence
from eblvm_lit.energies.base import Energy
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.loss_method import LossMethod, score_of_model
from eblvm_lit.methods.posterior_fit import LossWithPosterior
from eblvm_lit.methods.state import TrainState
from eblvm_lit.optimizers.base import Optimizer
from eblvm_lit.posteriors.base import Posterior
from eblvm_lit.scores.base import ScoreEstimator
from eblvm_lit.scores.exact import Exact
from eblvm_lit.scores.particles import PosteriorParticles
from eblvm_lit.scores.variational import VaES

__all__ = ["Critic", "FisherCritic", "VaGESFisher", "bracket"]


def bracket(critic: Callable[[Tensor], Tensor], s: Tensor, v: Tensor, u: Tensor) -> Tensor:
    r"""The value of a critic f of the scores s at each example.

    .. math:: s^\top f(v) + u^\top (\nabla_v f(v))\, u - \tfrac12 \|f(v)\|^2

    Args:
        critic: f, maps (B, *event) to (B, *event), row by row.
        s: The model's score at v, shape (B, *event).
        v: Shape (B, *event).
        u: Directions, E[u u'] = I, shape (B, *event).

    Returns:
        Shape (B,).

    Example:
        >>> one = torch.ones(1, 2)
        >>> bracket(lambda v: 2 * v, s=-one, v=one, u=one)  # -4 + 4 - 8 / 2
        tensor([-4.])
    """

    def along_u(x: Tensor) -> tuple[Tensor, Tensor]:
        f = critic(x)
        return (f * u).sum(), f

    slope, f = grad(along_u, has_aux=True)(v)
    return sum_event(s * f + slope * u - 0.5 * f.square())


class Critic(LossMethod):
    """A critic f of a model, which does not move; a subclass says how the model's score is estimated.

    Args:
        energy: The model.
        critic: A network that maps v (B, *event) to (B, *event).
        optimizer: Rule of the critic.
        residual: Whether f is the network added to :meth:`model_field`, so that the network learns the score of the
            data alone; else it is the network alone, as published.
        seed: Seed of all noise.
        compile: Whether the iteration is compiled.
    """

    trained = "critic"
    level = "critic"
    fixed = ("theta",)

    def __init__(
        self,
        *,
        energy: Energy,
        critic: nn.Module,
        optimizer: Optimizer,
        residual: bool = False,
        seed: Seed = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(energy=energy, optimizer=optimizer, seed=seed, compile=compile)
        self.critic = critic
        self.residual = residual

    @abstractmethod
    def score_noise(self, v: Tensor, generator: torch.Generator) -> Any:
        """The random numbers of one estimate of the score."""

    @abstractmethod
    def model_score(self, state: TrainState, v: Tensor, noise: Any) -> Tensor:
        """The model's score at v, shape (B, *event)."""

    @abstractmethod
    def model_field(self, state: TrainState, v: Tensor) -> Tensor:
        """A function of v near the model's score, shape (B, *event), without any noise.

        Any function of v may be a part of f: how near it is decides what the network has to learn, not what is
        estimated.
        """

    def field(self, state: TrainState) -> Callable[[Tensor], Tensor]:
        """f."""
        network = bind(self.critic, state.params["critic"])
        return (lambda v: network(v) + self.model_field(state, v)) if self.residual else network

    @property
    def title(self) -> str:
        """Of a model that does not move."""
        return f"{type(self).__name__}: the Fisher divergence of a fixed model, by a critic"

    def networks(self) -> dict[str, nn.Module]:
        """The model, which does not move, and the critic."""
        return {"theta": self.energy, "critic": self.critic}

    def noise(self, v: Tensor, generator: torch.Generator) -> dict[str, Any]:
        """The random numbers of one evaluation of the bracket."""
        signs = torch.randint(2, v.shape, generator=generator, device=v.device)
        return {"u": 2 * signs.to(v.dtype) - 1, "score": self.score_noise(v, generator)}

    def iteration(self, state: TrainState, v: Tensor, noise: dict[str, Any]) -> TrainState:
        """One step of the critic; the model's score is a constant to it, and is computed once."""
        s = self.model_score(state, v, noise[self.level]["score"])
        loss = partial(self._loss, state, s, v, noise[self.level]["u"])
        return self.descend(state, self.level, loss)

    def loss(self, state: TrainState, v: Tensor, noise: Any) -> Tensor:
        """Minus the bracket per example, shape (B,)."""
        s = self.model_score(state, v, noise["score"]).detach()
        return self._loss(state, s, v, noise["u"], state.params["critic"])

    def _loss(self, state: TrainState, s: Tensor, v: Tensor, u: Tensor, critic: Params) -> Tensor:
        return -bracket(self.field(state.at(critic=critic)), s, v, u)

    def bracket(self, v: Tensor, generator: torch.Generator) -> Tensor:
        """The bracket per example, shape (B,), whose mean estimates the divergence."""
        return -self.validation_loss(v, generator)


class FisherCritic(Critic):
    r"""The Fisher divergence of the data from a model, as the best a critic f can do.

    .. math:: D_F(p_D \| p_\theta) = \tfrac12 E_{p_D} \|s_\theta(v) - \nabla_v \log p_D(v)\|^2
        = \max_f E_{p_D} [s_\theta(v)^\top f(v) + u^\top (\nabla_v f(v))\, u - \tfrac12 \|f(v)\|^2]

    u are random signs; the maximum is at :math:`f = s_\theta - \nabla_v \log p_D`. Reference: Bao et al. 2021,
    section 4.3 and appendix F.3.

    Args:
        energy: The model, which does not move.
        critic: A network that maps v (B, *event) to (B, *event).
        optimizer: Rule of the critic.
        score: The estimator of the model's score; the exact score if not given.
        residual: Whether f is the network added to the model's score; else it is the network alone, as published.
        seed: Seed of all noise.
        compile: Whether the iteration is compiled.

    Raises:
        ConfigError: For an energy whose score cannot be computed so, or a residual critic of a noisy score.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.networks.vector_field import VectorField
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> method = FisherCritic(
        ...     energy=GRBM(v_dim=2, h_dim=3), critic=VectorField(v_dim=2), optimizer=Adam(lr=2e-4))
        >>> method.bracket(torch.zeros(5, 2), torch.Generator()).shape
        torch.Size([5])
    """

    def __init__(
        self,
        *,
        energy: Energy,
        critic: nn.Module,
        optimizer: Optimizer,
        score: ScoreEstimator | None = None,
        residual: bool = False,
        seed: Seed = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(
            energy=energy, critic=critic, optimizer=optimizer, residual=residual, seed=seed, compile=compile
        )
        self.score = score_of_model(score, energy)
        if residual and not isinstance(self.score, Exact):
            raise ConfigError(
                f"A residual critic is added to a score without noise, and that of {type(self.score).__name__} has "
                "some: use score=exact, method=vages_fisher, or residual=false."
            )

    def score_noise(self, v: Tensor, generator: torch.Generator) -> Any:
        """The random numbers of the score estimator; none, if it is exact."""
        return self.score.noise(self.energy, None, v, generator)

    def model_score(self, state: TrainState, v: Tensor, noise: Any) -> Tensor:
        """The score that the model alone gives at v, shape (B, *event)."""
        return self.score.function(bind(self.energy, state.theta), None, v, noise)(v)

    def model_field(self, state: TrainState, v: Tensor) -> Tensor:
        """The exact score."""
        return self.model_score(state, v, None)


class VaGESFisher(LossWithPosterior, Critic):
    r"""The Fisher divergence of the data from a model, by a critic that is given an estimate of the model's score.

    .. math:: \mathrm{VaES}(v) = -\frac1L \sum_{l=1}^L \nabla_v E(v, h_l), \quad h_l \sim q(h|v; \phi)

    An iteration is K steps on phi down the divergence of q(h|v) from p(h|v), then one on the critic. The bracket is
    linear in the score, so what matters of the estimate is its mean. Reference: Bao et al. 2021, section 4.3 and
    appendix F.3.

    Args:
        energy: The model, which does not move.
        posterior: q.
        divergence: Of q from p.
        critic: A network that maps v (B, *event) to (B, *event).
        optimizer: Rule of the critic and of q.
        n_lower_steps: K.
        n_particles: L.
        residual: Whether f is the network added to :math:`-\nabla_v E(v, h)` at the mean h of q, which is VaES of many
            particles where E is linear in h; else it is the network alone, as published.
        seed: Seed of all noise.
        compile: Whether the iteration is compiled.

    Raises:
        ConfigError: For parts that do not fit together.

    Example:
        >>> from eblvm_lit.divergences.kl import KL
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.networks.vector_field import VectorField
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> from eblvm_lit.posteriors.bernoulli import BernoulliPosterior
        >>> method = VaGESFisher(
        ...     energy=GRBM(v_dim=2, h_dim=3), posterior=BernoulliPosterior(v_dim=2, h_dim=3), divergence=KL(),
        ...     critic=VectorField(v_dim=2), optimizer=Adam(lr=2e-4))
        >>> list(method.param_groups())
        ['lower', 'upper']
    """

    def __init__(
        self,
        *,
        energy: Energy,
        posterior: Posterior,
        divergence: Divergence,
        critic: nn.Module,
        optimizer: Optimizer,
        n_lower_steps: NonNegativeInt = 5,
        n_particles: PositiveInt = 1,
        residual: bool = False,
        seed: Seed = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(
            energy=energy, critic=critic, optimizer=optimizer, residual=residual, seed=seed, compile=compile
        )
        self.particles = PosteriorParticles()
        self.estimate = VaES()
        self.n_particles = n_particles
        self.keep_posterior(posterior, divergence, n_lower_steps)

    def score_noise(self, v: Tensor, generator: torch.Generator) -> Tensor:
        """Noise of L latents for each v."""
        return self.particles.noise(self.energy, self.live_posterior(), (self.n_particles,), v, generator)

    def model_score(self, state: TrainState, v: Tensor, noise: Any) -> Tensor:
        """VaES at v, shape (B, *event)."""
        energy = bind(self.energy, state.theta)
        posterior = self.posterior_at(state)
        h = self.particles.draw(energy, posterior, v, noise)
        return self.estimate(energy, posterior, v, h)

    def model_field(self, state: TrainState, v: Tensor) -> Tensor:
        """VaES at the mean of q; a derivative by v goes through that mean, too."""
        energy = bind(self.energy, state.theta)
        posterior = self.posterior_at(state)
        return self.estimate(energy, posterior, v, posterior.mean(v).unsqueeze(0))
