"""The PyTorch optimizer that Lightning receives, which stores the state of a functional optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from eblvm_lit.core.fast_paths import without_hooks
from eblvm_lit.optimizers.base import Optimizer, State

__all__ = ["StatefulOptimizer"]


class StatefulOptimizer(torch.optim.Optimizer):
    """A PyTorch optimizer that stores a functional optimizer's state, so that Lightning can save and restore it.

    The closure given to :meth:`step` performs the update: it runs a whole iteration, with all levels, as one function.
    If a method has several optimizers, only the ``step`` of one of them is called, and Lightning counts these calls.

    Args:
        params: The parameters that the optimizer updates, by name.
        rule: The functional optimizer.

    Example:
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> optimizer = StatefulOptimizer({"x": nn.Parameter(torch.zeros(2))}, Adam(lr=0.1))
        >>> sorted(optimizer.functional_state())
        ['exp_avg', 'exp_avg_sq', 'step']
    """

    def __init__(self, params: Mapping[str, nn.Parameter], rule: Optimizer) -> None:
        super().__init__(list(params.values()), {"lr": rule.lr})
        self.names = list(params)
        self.rule = rule
        state = rule.init({name: p.detach() for name, p in params.items()})
        for name, p in params.items():
            self.state[p] = {slot: state[slot][name] for slot in rule.slots}
        self._first()["n_steps"] = state["step"]

    def _first(self) -> dict[str, Any]:
        """Return the stored state of the first parameter, which also contains the step count that all parameters share.

        The count is named ``n_steps``, because PyTorch and Lightning would leave an entry named ``step`` on the CPU
        when a run resumes on a GPU.
        """
        return self.state[self.param_groups[0]["params"][0]]

    def functional_state(self) -> State:
        """Return the stored state in the form that the functional optimizer expects, without copying the tensors."""
        entries = [self.state[p] for p in self.param_groups[0]["params"]]
        slots = {
            slot: {name: entry[slot] for name, entry in zip(self.names, entries, strict=True)}
            for slot in self.rule.slots
        }
        return {"step": self._first()["n_steps"], **slots}

    @without_hooks
    def step(self, closure: Callable[[], Any]) -> Any:
        """Run one training iteration by calling the closure, and return the closure's result."""
        return closure()
