"""Critics: the Fisher divergence of data from a model, estimated by training a critic of the model's score."""

from __future__ import annotations

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
from eblvm_lit.methods.state import TrainState
from eblvm_lit.optimizers.base import Optimizer
from eblvm_lit.posteriors.base import Posterior
from eblvm_lit.scores.base import ScoreEstimator
from eblvm_lit.scores.variational import Dropped, VariationalScore

__all__ = ["FisherCritic", "VaGESFisher", "bracket"]


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


class FisherCritic(LossMethod):
    r"""The Fisher divergence of the data from a model, as the best a critic f can do.

    .. math:: D_F(p_D \| p_\theta) = \tfrac12 E_{p_D} \|s_\theta(v) - \nabla_v \log p_D(v)\|^2
        = \max_f E_{p_D} [s_\theta(v)^\top f(v) + u^\top (\nabla_v f(v))\, u - \tfrac12 \|f(v)\|^2]

    u are random signs; the maximum is at :math:`f = s_\theta - \nabla_v \log p_D`. The bracket is linear in the score,
    so what matters of an estimated score is its mean. Where the score needs a posterior, an iteration is K steps on phi
    down the divergence of q(h|v) from p(h|v), then one on the critic. Reference: Bao et al. 2021, section 4.3 and
    appendix F.3.

    Args:
        energy: The model, which does not move.
        critic: A network that maps v (B, *event) to (B, *event).
        optimizer: The optimizer of the critic and of q.
        score: The estimator of the model's score; the exact score if not given.
        posterior: q(h|v; phi), for a score that needs it.
        divergence: Divergence of q from p, for a score that needs q.
        n_lower_steps: The number K of steps on phi in each iteration.
        residual: Whether f is the network added to the score without its noise, see
            :meth:`~eblvm_lit.scores.base.ScoreEstimator.smooth`, so that the network learns the score of the data only;
            else it is the network only, as published.
        seed: The seed of all random numbers.
        compile: Whether to compile the iteration; ``auto`` compiles it only in runs long enough to gain from it.

    Raises:
        ConfigError: For an energy whose score cannot be estimated so, or parts that do not fit together.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.networks.vector_field import VectorField
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> method = FisherCritic(
        ...     energy=GRBM(v_dim=2, h_dim=3), critic=VectorField(v_dim=2), optimizer=Adam(lr=2e-4))
        >>> method.bracket(torch.zeros(5, 2), torch.Generator()).shape
        torch.Size([5])
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
        score: ScoreEstimator | None = None,
        posterior: Posterior | None = None,
        divergence: Divergence | None = None,
        n_lower_steps: NonNegativeInt = 5,
        residual: bool = False,
        seed: Seed = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(energy=energy, optimizer=optimizer, seed=seed, compile=compile)
        self.critic = critic
        self.residual = residual
        self.score = score_of_model(score, energy, posterior)
        if residual and not self.score.has_smooth:
            raise ConfigError(
                f"A residual critic is added to a score without noise, and that of {type(self.score).__name__} has "
                "some: use score=exact, method=vages_fisher, or residual=false."
            )
        if self.score.needs_posterior:
            self.fit_posterior(posterior, divergence, n_lower_steps)

    def model_score(self, state: TrainState, v: Tensor, noise: Any) -> Tensor:
        """The estimate of the model's score at v, shape (B, *event)."""
        return self.score.function(self.energy_at(state.theta), self.posterior_at(state), v, noise)(v)

    def field(self, state: TrainState) -> Callable[[Tensor], Tensor]:
        """The function f of the critic."""
        network = bind(self.critic, state.params["critic"])
        if not self.residual:
            return network
        smooth = partial(self.score.smooth, self.energy_at(state.theta), self.posterior_at(state))
        return lambda v: network(v) + smooth(v)

    @property
    def title(self) -> str:
        """The method in words, of a model that does not move."""
        return f"{type(self).__name__}: the Fisher divergence of a fixed model, by a critic"

    def networks(self) -> dict[str, nn.Module]:
        """The model, which does not move, the posterior if there is one, and the critic."""
        return {**super().networks(), "critic": self.critic}

    def noise(self, v: Tensor, generator: torch.Generator) -> dict[str, Any]:
        """The random numbers of one evaluation of the bracket."""
        signs = torch.randint(2, v.shape, generator=generator, device=v.device)
        score = self.score.noise(self.energy, self.posterior, v, generator)
        return {"u": 2 * signs.to(v.dtype) - 1, "score": score}

    def iteration(self, state: TrainState, v: Tensor, noise: dict[str, Any]) -> TrainState:
        """Make K steps on phi, then one of the critic; the model's score is a constant to it, computed once."""
        state = self.fitted(state, v, noise)
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


class VaGESFisher(FisherCritic):
    r"""The Fisher divergence by a critic that is given VaES: :class:`FisherCritic` with particles of a posterior.

    .. math:: \mathrm{VaES}(v) = -\frac1L \sum_{l=1}^L \nabla_v E(v, h_l), \quad h_l \sim q(h|v; \phi)

    Reference: Bao et al. 2021, section 4.3 and appendix F.3.

    Args:
        energy: The model, which does not move.
        posterior: q.
        divergence: The divergence of q from p that the lower level minimises.
        critic: A network that maps v (B, *event) to (B, *event).
        optimizer: The optimizer of the critic and of q.
        n_lower_steps: The number K of steps on phi in each iteration.
        n_particles: L.
        residual: Whether f is the network added to VaES at the mean h of q, which is VaES of many particles where E is
            linear in h; else it is the network only, as published.
        seed: The seed of all random numbers.
        compile: Whether to compile the iteration; ``auto`` compiles it only in runs long enough to gain from it.

    Raises:
        ConfigError: If the parts do not fit together.

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
            energy=energy,
            critic=critic,
            optimizer=optimizer,
            # one set of particles: the theta-gradient of the score is not asked for
            score=VariationalScore(n_particles=n_particles, covariance=Dropped(), sets="shared"),
            posterior=posterior,
            divergence=divergence,
            n_lower_steps=n_lower_steps,
            residual=residual,
            seed=seed,
            compile=compile,
        )
