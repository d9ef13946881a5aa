"""The state that one iteration of a method maps to the next, and the groups of parameters that move in it."""

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
    """Parameters that one optimizer moves.

    Attributes:
        network: Whose they are: ``theta``, ``phi``, ...
        optimizer: The update rule.
        prefix: What their names begin with; all of the network's if empty.

    Raises:
        ConfigError: For an optimizer of torch.

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
        """Those of a network's parameters that belong to the group."""
        if not self.prefix:
            return params
        return {name: p for name, p in params.items() if name.startswith(self.prefix)}


class Step(NamedTuple):
    """What a step descended, for the record: means over the whole minibatch.

    Attributes:
        loss: A number.
        grads: The gradient, before clipping.
        diagnostics: Further numbers by name.
    """

    loss: Tensor
    grads: Params
    diagnostics: dict[str, Tensor]


class TrainState(NamedTuple):
    """All that an iteration starts from. An iteration is a function of it, of the minibatch and of the noise.

    Attributes:
        params: Parameters of each network, by ``theta``, ``phi``, ...
        optimizers: State of each group's optimizer, by the group's name.
        lrs: Learning rate of each group.
        buffers: What else lasts from one iteration to the next: persistent chains, running statistics.
        minibatch: Means and rows of the whole minibatch, of which this process may hold a shard.
        indices: The numbers of the whole minibatch's examples in the training split, int64, for methods with buffers
            :attr:`Method.per_example`; None: the first ones.
        in_place: Whether steps may overwrite the tensors of this state, which is faster outside of a compiler.
        steps: The last step of each group in this iteration.
    """

    params: dict[str, Params]
    optimizers: dict[str, State]
    lrs: dict[str, Tensor]
    buffers: dict[str, Tensor] = {}  # noqa: RUF012 - nothing of a state is changed but by its owner
    minibatch: Minibatch = WHOLE
    indices: Tensor | None = None
    in_place: bool = False
    steps: dict[str, Step] = {}  # noqa: RUF012

    @property
    def theta(self) -> Params:
        """The model's parameters."""
        return self.params["theta"]

    @property
    def phi(self) -> Params:
        """The posterior's parameters."""
        return self.params["phi"]

    def record(self) -> dict[str, Tensor]:
        """Loss, gradient norm (before clipping) and diagnostics of each group's last step, as ``<group>_<number>``."""
        found: dict[str, Tensor] = {}
        for name, last in self.steps.items():
            found[f"{name}_loss"] = last.loss
            found[f"{name}_grad_norm"] = norm(last.grads)
            for key, value in last.diagnostics.items():
                found[f"{name}_{key}"] = value
        return found

    def at(self, **params: Params) -> TrainState:
        """The state with other parameters of some networks."""
        return self._replace(params={**self.params, **params})
