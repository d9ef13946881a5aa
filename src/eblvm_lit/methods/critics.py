"""Methods that estimate the Fisher divergence between the data and a fixed model by training a critic."""

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
from eblvm_lit.methods.loss_method import LossMethod, score_of_model
from eblvm_lit.methods.state import TrainState
from eblvm_lit.optimizers.base import Optimizer
from eblvm_lit.posteriors.base import Posterior
from eblvm_lit.scores.base import ScoreEstimator
from eblvm_lit.scores.variational import Dropped, VariationalScore

__all__ = ["FisherCritic", "VaGESFisher", "bracket"]


def bracket(critic: Callable[[Tensor], Tensor], s: Tensor, v: Tensor, u: Tensor) -> Tensor:
    r"""Compute the objective of each example; the critic f is trained to maximise the mean of these values.

    .. math:: s^\top f(v) + u^\top (\nabla_v f(v))\, u - \tfrac12 \|f(v)\|^2

    This is the expression in brackets in :class:`FisherCritic`.

    Args:
        critic: The function f, which maps (B, *event) to (B, *event), each example by itself.
        s: The model's score at v, shape (B, *event).
        v: The examples, shape (B, *event).
        u: Random directions with E[u u'] = I, shape (B, *event).

    Returns:
        The value for each example, shape (B,).

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
    r"""Estimation of the Fisher divergence between the data and a fixed model by training a critic f.

    .. math:: D_F(p_D \| p_\theta) = \tfrac12 E_{p_D} \|s_\theta(v) - \nabla_v \log p_D(v)\|^2
        = \max_f E_{p_D} [s_\theta(v)^\top f(v) + u^\top (\nabla_v f(v))\, u - \tfrac12 \|f(v)\|^2]

    u are random signs. The maximum is at :math:`f = s_\theta - \nabla_v \log p_D`. The expression in brackets
    (:func:`bracket`) is linear in the score, so an estimate of the score may replace the score if its mean is right.
    If the score needs a posterior, an iteration makes K steps on phi that decrease the divergence of q(h|v) from
    p(h|v), and then one step on the critic. Reference: Bao et al. 2021, section 4.3 and appendix F.3.

    Args:
        energy: The model, which is not trained.
        critic: A network that maps v (B, *event) to (B, *event).
        optimizer: The optimizer of the critic and of q.
        score: The estimator of the model's score; the exact score if not given.
        posterior: The posterior q(h|v; phi), for a score that needs it.
        divergence: The divergence of q from p that the lower level minimises, for a score that needs q.
        n_lower_steps: The number K of steps on phi in each iteration.
        residual: Whether f is the sum of the network and of a noise-free approximation of the model's score, see
            :meth:`~eblvm_lit.scores.base.ScoreEstimator.smooth`. The network then only has to learn the score of the
            data. If false, f is the network, as in the paper.
        seed: The seed of all random numbers.
        compile: Whether to compile the iteration; ``auto`` compiles it only in runs long enough to gain from it.

    Raises:
        ConfigError: If the estimator is incompatible with the energy.

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
        if self.score.needs_posterior:
            self.fit_posterior(posterior, divergence, n_lower_steps)

    def model_score(self, state: TrainState, v: Tensor, noise: Any) -> Tensor:
        """Estimate the model's score at v, shape (B, *event)."""
        return self.score.function(self.energy_at(state.theta), self.posterior_at(state), v, noise)(v)

    def field(self, state: TrainState) -> Callable[[Tensor], Tensor]:
        """Return the critic f, with the parameters in ``state``, as a function of v."""
        network = bind(self.critic, state.params["critic"])
        if not self.residual:
            return network
        smooth = partial(self.score.smooth, self.energy_at(state.theta), self.posterior_at(state))
        return lambda v: network(v) + smooth(v)

    @property
    def title(self) -> str:
        """Return a readable name of the method."""
        return f"{type(self).__name__}: the Fisher divergence of a fixed model, by a critic"

    def networks(self) -> dict[str, nn.Module]:
        """Return the fixed model, the posterior if there is one, and the critic."""
        return {**super().networks(), "critic": self.critic}

    def noise(self, v: Tensor, generator: torch.Generator) -> dict[str, Any]:
        """Draw the random numbers that one evaluation of :func:`bracket` needs."""
        signs = torch.randint(2, v.shape, generator=generator, device=v.device)
        score = self.score.noise(self.energy, self.posterior, v, generator)
        return {"u": 2 * signs.to(v.dtype) - 1, "score": score}

    def iteration(self, state: TrainState, v: Tensor, noise: dict[str, Any]) -> TrainState:
        """Make K steps on the posterior, if there is one, then one step on the critic, with a constant model score."""
        state = self.fitted(state, v, noise)
        s = self.model_score(state, v, noise[self.level]["score"])
        loss = partial(self._loss, state, s, v, noise[self.level]["u"])
        return self.descend(state, self.level, loss)

    def loss(self, state: TrainState, v: Tensor, noise: Any) -> Tensor:
        """Compute the critic's loss for each example, shape (B,): minus the value of :func:`bracket`."""
        s = self.model_score(state, v, noise["score"]).detach()
        return self._loss(state, s, v, noise["u"], state.params["critic"])

    def _loss(self, state: TrainState, s: Tensor, v: Tensor, u: Tensor, critic: Params) -> Tensor:
        return -bracket(self.field(state.at(critic=critic)), s, v, u)

    def bracket(self, v: Tensor, generator: torch.Generator) -> Tensor:
        """Compute the critic's objective for each example, shape (B,). The mean estimates the Fisher divergence."""
        return -self.validation_loss(v, generator)


class VaGESFisher(FisherCritic):
    r"""Estimation of the Fisher divergence by training a critic, with the variational estimate of the model's score.

    It is a :class:`FisherCritic` whose score is estimated with particles from a posterior:

    .. math:: \mathrm{VaES}(v) = -\frac1L \sum_{l=1}^L \nabla_v E(v, h_l), \quad h_l \sim q(h|v; \phi)

    Reference: Bao et al. 2021, section 4.3 and appendix F.3.

    Args:
        energy: The model, which is not trained.
        posterior: The posterior q(h|v; phi).
        divergence: The divergence of q from p that the lower level minimises.
        critic: A network that maps v (B, *event) to (B, *event).
        optimizer: The optimizer of the critic and of q.
        n_lower_steps: The number K of steps on phi in each iteration.
        n_particles: The number L of latents drawn for each v.
        residual: Whether f is the sum of the network and of VaES at the mean of q, which equals the mean of VaES if E
            is linear in h. If false, f is the network, as in the paper.
        seed: The seed of all random numbers.
        compile: Whether to compile the iteration; ``auto`` compiles it only in runs long enough to gain from it.

    Raises:
        ConfigError: If the components are incompatible.

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
            # The score is not differentiated with respect to theta. The covariance term of VaGES is therefore dropped,
            # and one set of particles is enough.
            score=VariationalScore(n_particles=n_particles, covariance=Dropped(), sets="shared"),
            posterior=posterior,
            divergence=divergence,
            n_lower_steps=n_lower_steps,
            residual=residual,
            seed=seed,
            compile=compile,
        )
