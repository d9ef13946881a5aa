"""The base class of methods that minimise one loss. If the loss needs a posterior, they also fit the posterior."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from eblvm_lit.core.functional import Params, bind
from eblvm_lit.core.ranges import Seed
from eblvm_lit.divergences.base import Divergence
from eblvm_lit.energies.base import Energy, refuse_bits
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.base import Method
from eblvm_lit.methods.parts import MethodParts
from eblvm_lit.methods.posterior_fit import LowerNoise, PosteriorFit
from eblvm_lit.methods.state import ParamGroup, TrainState
from eblvm_lit.objectives.base import Objective
from eblvm_lit.optimizers.base import Optimizer
from eblvm_lit.posteriors.base import Posterior
from eblvm_lit.scores.base import ScoreEstimator
from eblvm_lit.scores.exact import Exact

__all__ = ["LossMethod", "score_of_model"]


def score_of_model(score: ScoreEstimator | None, energy: Energy, posterior: Posterior | None = None) -> ScoreEstimator:
    """Check that a score estimator works with the energy, and return it; the default is the exact score.

    Raises:
        ConfigError: If the estimator is incompatible with the energy, or needs a posterior and none is given.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> type(score_of_model(None, GRBM(v_dim=2, h_dim=3))).__name__
        'Exact'
    """
    score = score or Exact()
    refuse_bits(energy, "a score")
    score.check(energy)
    if score.needs_posterior and posterior is None:
        raise ConfigError(
            f"The score of {type(score).__name__} needs a posterior, which this method does not fit: use method=bism "
            "or vages, or method=vages_fisher for a critic."
        )
    return score


class LossMethod(Method):
    """A method that takes one gradient step on one loss per iteration. Subclasses implement ``noise`` and ``loss``.

    The loss that training minimises is also the validation loss. If the loss needs a posterior q(h|v; phi), the
    subclass calls :meth:`fit_posterior` in its constructor. Each iteration then makes K steps on phi before the step on
    the loss, which uses the fitted phi.

    Args:
        energy: The model, which is the network ``theta``; None if a subclass has other networks.
        optimizer: The optimizer of the step on the loss.
        seed, compile: As in :class:`~eblvm_lit.methods.base.Method`.

    Raises:
        ConfigError: If the energy is not of the type :attr:`energy_type`.

    Attributes:
        trained: The name of the network that the step on the loss updates.
        level: The name under which this step is logged; it is ``upper`` if a posterior is fitted.
        energy_type: The class of energies that the loss accepts; ``MarginalEnergy`` if it needs the free energy.
        posterior: The posterior q, which is the network ``phi``; None if the loss does not need one.
        fit: The lower level, which fits the posterior; None if the loss does not need one.

    Example:
        >>> from eblvm_lit.core.functional import bind
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.optimizers.sgd import SGD
        >>> class LowEnergy(LossMethod):
        ...     def noise(self, v, generator):
        ...         return None
        ...     def loss(self, state, v, noise):
        ...         return bind(self.energy, state.theta).free_energy(v)
        >>> method = LowEnergy(energy=GRBM(v_dim=2, h_dim=3), optimizer=SGD(lr=0.1))
        >>> method.validation_loss(torch.zeros(5, 2), torch.Generator()).shape
        torch.Size([5])
    """

    trained = "theta"
    level = "model"
    energy_type: type[Energy] = Energy

    def __init__(
        self,
        *,
        optimizer: Optimizer,
        energy: Energy | None = None,
        seed: Seed = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(seed=seed, compile=compile)
        self.optimizer = optimizer
        self.lower_optimizer = optimizer
        self.n_lower_steps = 0
        self.posterior: Posterior | None = None
        self.fit: PosteriorFit | None = None
        if energy is not None:
            if not isinstance(energy, self.energy_type):
                name = type(energy).__name__
                raise ConfigError(f"{name} has no tractable free energy, which {type(self).__name__} needs.")
            self.energy = energy

    def fit_posterior(
        self,
        posterior: Posterior | None,
        divergence: Divergence | None,
        n_lower_steps: int,
        lower_optimizer: Optimizer | None = None,
        objective: Objective | None = None,
        lower_noise: LowerNoise = "fresh",
    ) -> None:
        """Add a lower level to the method: in each iteration, K steps fit the posterior q before the step on the loss.

        If posterior and divergence are both None, the method has no lower level.

        Args:
            posterior: The posterior q(h|v; phi).
            divergence: The divergence of q from p that these steps minimise.
            n_lower_steps: The number K of steps on phi in each iteration.
            lower_optimizer: The optimizer of these steps; that of the loss if not given.
            objective: The objective that perturbs the data at which q is fitted, as in
                :class:`~eblvm_lit.methods.posterior_fit.PosteriorFit`.
            lower_noise: ``fresh`` or ``shared``, as in :class:`~eblvm_lit.methods.posterior_fit.PosteriorFit`.

        Raises:
            ConfigError: If only one of posterior and divergence is given, or if the components are incompatible.
        """
        if posterior is None and divergence is None:
            return
        if posterior is None or divergence is None:
            raise ConfigError("A posterior is fitted by a divergence: give both, or null for both.")
        self.fit = PosteriorFit(
            energy=self.energy,
            posterior=posterior,
            divergence=divergence,
            n_steps=n_lower_steps,
            objective=objective,
            view=self.energy_at,
            lower_noise=lower_noise,
        )
        self.posterior = posterior
        self.n_lower_steps = n_lower_steps
        self.lower_optimizer = lower_optimizer or self.optimizer
        self.level = "upper"

    def networks(self) -> dict[str, nn.Module]:
        """Return the model ``theta``, and the posterior ``phi`` if there is one."""
        return {"theta": self.energy, **({} if self.posterior is None else {"phi": self.posterior})}

    @property
    def parts(self) -> MethodParts:
        """Return the energy and, if there is a posterior, the posterior and its divergence."""
        divergence = None if self.fit is None else self.fit.divergence
        return MethodParts(energy=self.energy, posterior=self.posterior, divergence=divergence)

    def energy_at(self, theta: Params) -> Energy:
        """Return the energy with the given parameters theta."""
        return bind(self.energy, theta)

    def posterior_at(self, state: TrainState) -> Posterior | None:
        """Return the posterior with the parameters in ``state``, or None if the method has no posterior."""
        return None if self.posterior is None else bind(self.posterior, state.phi)

    @abstractmethod
    def noise(self, v: Tensor, generator: torch.Generator) -> Any:
        """Draw the random numbers of one evaluation of the loss."""

    @abstractmethod
    def loss(self, state: TrainState, v: Tensor, noise: Any) -> Tensor:
        """Compute the loss of each example of v (B, *event) with the parameters in ``state``, shape (B,)."""

    def param_groups(self) -> dict[str, ParamGroup]:
        """Return the parameter groups of the posterior, if there is one, and of the network that the loss trains."""
        lower = {} if self.fit is None else {"lower": ParamGroup("phi", self.lower_optimizer)}
        return {**lower, self.level: ParamGroup(self.trained, self.optimizer)}

    def fit_noise(self, fit: PosteriorFit, v: Tensor, generator: torch.Generator) -> dict[str, Any]:
        """Draw the random numbers of the K steps on the posterior."""
        return fit.noise(v, self.n_lower_steps, generator)

    def fit_points(self, v: Tensor, noise: dict[str, Any], k: int) -> Tensor:
        """Return the points at which the k-th step fits the posterior; by default they are the data."""
        return v

    def draw_noise(self, v: Tensor, generator: torch.Generator) -> dict[str, Any]:
        """Draw the random numbers of the K steps on the posterior and of the loss."""
        lower = {} if self.fit is None else {"lower": self.fit_noise(self.fit, v, generator)}
        return {**lower, self.level: self.noise(v, generator)}

    def fitted(self, state: TrainState, v: Tensor, noise: dict[str, Any]) -> TrainState:
        """Make K steps on the posterior's parameters phi. If there is no posterior, return the state unchanged."""
        if self.fit is None:
            return state
        for k in range(self.n_lower_steps):
            points = self.fit_points(v, noise["lower"], k)
            lower_loss = partial(self.fit.loss, state.theta, v=points, noise=noise["lower"], i=k)
            state = self.descend(state, "lower", lower_loss)
        return state

    def iteration(self, state: TrainState, v: Tensor, noise: dict[str, Any]) -> TrainState:
        """Make K steps on the posterior's parameters phi, then one step on the loss at the new phi."""
        state = self.fitted(state, v, noise)

        def loss(params: Params) -> Tensor:
            return self.loss(state.at(**{self.trained: params}), v, noise[self.level])

        return self.descend(state, self.level, loss)

    def validation_loss(self, v: Tensor, generator: torch.Generator) -> Tensor:
        """Compute the training loss of each example at the current parameters, shape (B,)."""
        return self.loss(self.live_state(), v, self.noise(v, generator))
