"""An optimizer as a pure function of parameters, gradients and state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from pydantic import PositiveFloat
from torch import Tensor

from eblvm_lit.core.functional import Params
from eblvm_lit.core.tensors import copy_tree, tree_map
from eblvm_lit.errors import ConfigError
from eblvm_lit.optimizers.schedules import Constant, Schedule

__all__ = ["Optimizer", "State"]

State = dict[str, Any]


class Optimizer(ABC):
    """One update rule with its learning rate, schedule and clipping.

    The unrolled steps, the hypergradient through them and a compiled iteration's live steps are all :meth:`update`.
    An eager iteration takes its live steps by :meth:`update_`, for which a rule may have a faster way, up to rounding.

    Args:
        lr: Learning rate at the start.
        schedule: Factor on it over the run; constant if not given.
        clip_norm: Gradients with a larger norm (over all parameters of the level) are scaled down to it.

    Raises:
        ConfigError: If lr or clip_norm is not positive.

    Attributes:
        slots: Names of the per-parameter tensors of the state.
    """

    slots: tuple[str, ...] = ()

    def __init__(
        self, *, lr: PositiveFloat, schedule: Schedule | None = None, clip_norm: PositiveFloat | None = None
    ) -> None:
        if not lr > 0:
            raise ConfigError(f"An optimizer needs lr > 0, not {lr}.")
        if clip_norm is not None and not clip_norm > 0:
            raise ConfigError(f"clip_norm must be positive or null, not {clip_norm}.")
        self.lr = lr
        self.schedule = schedule or Constant()
        self.clip_norm = clip_norm

    def init(self, params: Params) -> State:
        """The state before the first step."""
        first = next(iter(params.values()))
        zeros = {slot: tree_map(torch.zeros_like, params) for slot in self.slots}
        return {"step": first.new_zeros(()), **zeros}

    @abstractmethod
    def update(self, params: Params, grads: Params, state: State, lr: Tensor | float) -> tuple[Params, State]:
        """One step: new parameters and new state; differentiable in all its arguments."""

    @torch.no_grad()
    def update_(self, params: Params, grads: Params, state: State, lr: Tensor | float) -> tuple[Params, State]:
        """One step written into the tensors of params and state, which are returned."""
        moved, after = self.update(params, grads, state, lr)
        copy_tree(params, moved)
        copy_tree(state, after)
        return params, state
