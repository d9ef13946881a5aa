"""The base of methods that descend one loss: a subclass gives the loss and its noise."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Literal

import torch
from torch import Tensor, nn

from eblvm_lit.core.functional import Params, bind
from eblvm_lit.core.ranges import Seed
from eblvm_lit.energies.base import Energy
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.base import Method
from eblvm_lit.methods.parts import MethodParts
from eblvm_lit.methods.state import ParamGroup, TrainState
from eblvm_lit.optimizers.base import Optimizer
from eblvm_lit.scores.base import ScoreEstimator
from eblvm_lit.scores.exact import Exact

__all__ = ["LossMethod", "score_of_model"]


def score_of_model(score: ScoreEstimator | None, energy: Energy) -> ScoreEstimator:
    """An estimator of the score of an energy that is given no posterior; the exact one if not given.

    Raises:
        ConfigError: If the energy's score cannot be estimated so, or the estimator needs a posterior.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> type(score_of_model(None, GRBM(v_dim=2, h_dim=3))).__name__
        'Exact'
    """
    score = score or Exact()
    score.check(energy)
    if score.needs_posterior:
        raise ConfigError(
            f"The score of {type(score).__name__} needs a posterior, which this method does not fit: use method=bism "
            "or vages, or method=vages_fisher for a critic."
        )
    return score


class LossMethod(Method):
    """One step an iteration down one loss of one network. A subclass gives ``noise`` and ``loss``.

    The same loss is descended in training and logged at validations.

    Args:
        energy: The model, network ``theta``; None where a subclass has other networks.
        optimizer: The update rule.
        seed, compile: As in :class:`~eblvm_lit.methods.base.Method`.

    Raises:
        ConfigError: For an energy that is not of :attr:`energy_type`.

    Attributes:
        trained: The network whose parameters move.
        level: The name under which the step is logged.
        energy_type: ``MarginalEnergy`` where the loss needs the free energy.
        instead: What to use for other energies, as the end of the refusal's sentence.

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
    instead = ""

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
        if energy is not None:
            self.check_energy(energy)
            self.energy = energy

    def check_energy(self, energy: Energy) -> None:
        """Refuse an energy that is not of :attr:`energy_type`."""
        if not isinstance(energy, self.energy_type):
            name = type(energy).__name__
            raise ConfigError(f"{name} has no tractable free energy, which {type(self).__name__} needs{self.instead}.")

    def networks(self) -> dict[str, nn.Module]:
        """The model."""
        return {"theta": self.energy}

    @property
    def parts(self) -> MethodParts:
        """The energy."""
        return MethodParts(energy=self.energy)

    def energy_at(self, theta: Params) -> Energy:
        """The model with other parameters."""
        return bind(self.energy, theta)

    @abstractmethod
    def noise(self, v: Tensor, generator: torch.Generator) -> Any:
        """The random numbers of one evaluation of the loss."""

    @abstractmethod
    def loss(self, state: TrainState, v: Tensor, noise: Any) -> Tensor:
        """The loss per example, shape (B,), of v (B, *event) at the state's parameters."""

    def param_groups(self) -> dict[str, ParamGroup]:
        """One group."""
        return {self.level: ParamGroup(self.trained, self.optimizer)}

    def draw_noise(self, v: Tensor, generator: torch.Generator) -> dict[str, Any]:
        """The random numbers of the step."""
        return {self.level: self.noise(v, generator)}

    def iteration(self, state: TrainState, v: Tensor, noise: dict[str, Any]) -> TrainState:
        """One step down the loss."""

        def loss(params: Params) -> Tensor:
            return self.loss(state.at(**{self.trained: params}), v, noise[self.level])

        return self.descend(state, self.level, loss)

    def validation_loss(self, v: Tensor, generator: torch.Generator) -> Tensor:
        """The loss itself, per example, shape (B,)."""
        return self.loss(self.live_state(), v, self.noise(v, generator))
