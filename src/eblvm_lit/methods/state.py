"""The training state, which each iteration changes, and the groups of parameters that the optimizers update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from torch import Tensor

from eblvm_lit.core.minibatch import WHOLE, Minibatch
from eblvm_lit.core.tensors import Params, norm
from eblvm_lit.errors import ConfigError
from eblvm_lit.optimizers.base import Optimizer, State

__all__ = ["ParamGroup", "Step", "TrainState"]

Value = TypeVar("Value", bound=Tensor)


@dataclass(frozen=True)
class ParamGroup:
    """A group of parameters that one optimizer updates.

    Attributes:
        network: The name of the network that the parameters belong to: ``theta``, ``phi``, ...
        optimizer: The optimizer, a rule of :mod:`eblvm_lit.optimizers`.
        prefix: The prefix of the names of these parameters; if empty, the group has all parameters of the network.

    Raises:
        ConfigError: If the optimizer is one of torch's.

    Example:
        >>> import torch
        >>> from eblvm_lit.optimizers.sgd import SGD
        >>> encoder = ParamGroup("omega", SGD(lr=0.1), prefix="encoder.")
        >>> list(encoder.of({"encoder.weight": torch.zeros(1), "generator.weight": torch.zeros(1)}))
        ['encoder.weight']
    """

    network: str
    optimizer: Optimizer
    prefix: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.optimizer, Optimizer):
            kind = type(self.optimizer)
            raise ConfigError(
                f"An optimizer is a rule such as eblvm_lit.Adam(lr=0.001), not {kind.__module__}.{kind.__qualname__}."
            )

    def of(self, params: dict[str, Value]) -> dict[str, Value]:
        """Select the group's parameters from all parameters of the network."""
        if not self.prefix:
            return params
        return {name: p for name, p in params.items() if name.startswith(self.prefix)}


class Step(NamedTuple):
    """The record of an optimizer step, whose values are means over the whole minibatch.

    Attributes:
        loss: The loss that the step decreases, a scalar.
        grads: The gradient before clipping, by the parameters' names.
        diagnostics: Further scalars to log, by name.
    """

    loss: Tensor
    grads: Params
    diagnostics: dict[str, Tensor]


class TrainState(NamedTuple):
    """The training state of a method. An iteration computes the next state from this state, a minibatch and noise.

    Attributes:
        params: The parameters of each network, by the network's name: ``theta``, ``phi``, ...
        optimizers: The state of each group's optimizer, by the group's name.
        lrs: The learning rates, by the names of :attr:`Method.rates`.
        buffers: The other tensors that are kept from one iteration to the next, by name, such as persistent chains
            and running statistics.
        minibatch: The means and examples of the whole minibatch, of which this process may have only a shard.
        indices: The indices of the minibatch's examples in the training split, int64, for methods with buffers
            :attr:`Method.per_example`. None stands for the first examples of the split.
        in_place: Whether steps may overwrite the tensors of this state, which is faster if the step is not compiled.
        steps: The record of each group's last step in this iteration, by the group's name.
    """

    params: dict[str, Params]
    optimizers: dict[str, State]
    lrs: dict[str, Tensor]
    buffers: dict[str, Tensor] = {}  # noqa: RUF012 - nothing writes into the default, which all states share
    minibatch: Minibatch = WHOLE
    indices: Tensor | None = None
    in_place: bool = False
    steps: dict[str, Step] = {}  # noqa: RUF012

    @property
    def theta(self) -> Params:
        """Return the parameters of the model."""
        return self.params["theta"]

    @property
    def phi(self) -> Params:
        """Return the parameters of the posterior."""
        return self.params["phi"]

    def record(self) -> dict[str, Tensor]:
        """Return a dict of the loss, gradient norm and diagnostics of each group's last step.

        The keys are ``<group>_<quantity>``. Gradient norms are computed before clipping.
        """
        found: dict[str, Tensor] = {}
        for name, last in self.steps.items():
            found[f"{name}_loss"] = last.loss
            found[f"{name}_grad_norm"] = norm(last.grads)
            found |= {f"{name}_{key}": value for key, value in last.diagnostics.items()}
        return found

    def at(self, **params: Params) -> TrainState:
        """Return a copy of the state with new parameters for the named networks."""
        return self._replace(params={**self.params, **params})
