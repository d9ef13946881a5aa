"""The base class of optimizers, which are pure functions of parameters, gradients and state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from pydantic import PositiveFloat
from torch import Tensor

from eblvm_lit.core.functional import Params
from eblvm_lit.core.tensors import copy_tree, tree_map
from eblvm_lit.optimizers.schedules import Constant, Schedule

__all__ = ["Optimizer", "State"]

State = dict[str, Any]


class Optimizer(ABC):
    """The base class of update rules with a learning rate, a schedule and gradient clipping.

    Unrolled steps (with the hypergradient through them) and all steps of a compiled iteration are computed by
    :meth:`update`. An eager iteration changes the run's current parameters by :meth:`update_`, which a rule may
    implement in a faster way with the same result up to rounding.

    Args:
        lr: The initial learning rate.
        schedule: The learning-rate schedule; constant if not given.
        clip_norm: The maximum norm of the gradient over all parameters of the level; larger gradients are scaled down
            to this norm. Null for no clipping.

    Attributes:
        slots: The names of the state's entries that contain one tensor for each parameter, such as moments.
    """

    slots: tuple[str, ...] = ()

    def __init__(
        self, *, lr: PositiveFloat, schedule: Schedule | None = None, clip_norm: PositiveFloat | None = None
    ) -> None:
        self.lr = lr
        self.schedule = schedule or Constant()
        self.clip_norm = clip_norm

    def init(self, params: Params) -> State:
        """Return the state before the first step."""
        first = next(iter(params.values()))
        zeros = {slot: tree_map(torch.zeros_like, params) for slot in self.slots}
        return {"step": first.new_zeros(()), **zeros}

    @abstractmethod
    def update(self, params: Params, grads: Params, state: State, lr: Tensor | float) -> tuple[Params, State]:
        """Compute one step, and return the new parameters and state.

        Both are differentiable with respect to all arguments.
        """

    @torch.no_grad()
    def update_(self, params: Params, grads: Params, state: State, lr: Tensor | float) -> tuple[Params, State]:
        """Take one step in place: write the results into the tensors of ``params`` and ``state``, and return both."""
        moved, after = self.update(params, grads, state, lr)
        copy_tree(params, moved)
        copy_tree(state, after)
        return params, state
