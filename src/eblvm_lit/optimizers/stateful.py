"""The optimizer that Lightning sees: it holds the state of a functional one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from eblvm_lit.core.fast_paths import without_hooks
from eblvm_lit.optimizers.base import Optimizer, State

__all__ = ["StatefulOptimizer"]


class StatefulOptimizer(torch.optim.Optimizer):
    """Holds the state of a functional optimizer where Lightning saves, restores and moves it.

    The update itself happens in the closure given to :meth:`step`, which runs a whole iteration: all levels, as one
    function. Lightning counts the steps of the one optimizer whose ``step`` is called.

    Args:
        params: The parameters it moves, by name.
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
        """The entry that also holds the number of steps, which is the same for all parameters.

        By the name ``step`` torch and Lightning would leave it on the CPU when a run resumes on a GPU.
        """
        return self.state[self.param_groups[0]["params"][0]]

    def functional_state(self) -> State:
        """The state as the rule takes it; the tensors are the ones held here."""
        entries = [self.state[p] for p in self.param_groups[0]["params"]]
        slots = {
            slot: {name: entry[slot] for name, entry in zip(self.names, entries, strict=True)}
            for slot in self.rule.slots
        }
        return {"step": self._first()["n_steps"], **slots}

    @without_hooks
    def step(self, closure: Callable[[], Any]) -> Any:
        """Run the iteration."""
        return closure()
