"""An optimizer that leaves some parameters out of its first step."""

from __future__ import annotations

import torch
from torch import Tensor

from eblvm_lit.core.functional import Params
from eblvm_lit.optimizers.base import Optimizer, State

__all__ = ["LateStart"]


class LateStart(Optimizer):
    """An optimizer whose first step leaves some parameters and their moments unchanged.

    Afterwards the step count of these parameters is one lower than the step count of the others. PyTorch's optimizers
    treat parameters that have no gradient yet in the same way.

    Args:
        rule: The optimizer that computes the steps.
        late: The prefix of the names of the parameters that the first step skips.

    Example:
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> rule = LateStart(rule=Adam(lr=0.1, weight_decay=0.1), late="b")
        >>> params, grads = {"a": torch.ones(1), "b": torch.ones(1)}, {"a": torch.ones(1), "b": torch.zeros(1)}
        >>> rule.update(params, grads, rule.init(params), 0.1)[0]
        {'a': tensor([0.9000]), 'b': tensor([1.])}
    """

    def __init__(self, *, rule: Optimizer, late: str) -> None:
        super().__init__(lr=rule.lr, schedule=rule.schedule, clip_norm=rule.clip_norm)
        self.rule = rule
        self.late = late
        self.slots = rule.slots

    def update(self, params: Params, grads: Params, state: State, lr: Tensor | float) -> tuple[Params, State]:
        """Compute one step of the wrapped optimizer; the first step leaves the late parameters unchanged."""

        def step(names: list[str], n_steps: Tensor) -> tuple[Params, State]:
            own, of_own = ({name: x[name] for name in names} for x in (params, grads))
            return self.rule.update(own, of_own, {**state, "step": n_steps}, lr)

        late = [name for name in params if name.startswith(self.late)]
        n_steps = state["step"]
        moved, after = step([name for name in params if name not in late], n_steps)
        joined, after_joined = step(late, (n_steps - 1).clamp(min=0))
        for name in late:
            moved[name] = torch.where(n_steps > 0, joined[name], params[name])
            for slot in self.slots:
                after[slot][name] = torch.where(n_steps > 0, after_joined[slot][name], state[slot][name])
        return moved, after
