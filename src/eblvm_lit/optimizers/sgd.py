"""Plain gradient descent."""

from __future__ import annotations

from torch import Tensor

from eblvm_lit.core.functional import Params
from eblvm_lit.core.tensors import tree_map
from eblvm_lit.optimizers.base import Optimizer, State

__all__ = ["SGD"]


class SGD(Optimizer):
    r"""Gradient descent, :math:`p \leftarrow p - \alpha g`: the rule of the papers' equations.

    Example:
        >>> import torch
        >>> sgd, params = SGD(lr=0.1), {"x": torch.zeros(1)}
        >>> sgd.update(params, {"x": torch.ones(1)}, sgd.init(params), 0.1)[0]
        {'x': tensor([-0.1000])}
    """

    def metric(self, grads: Params) -> Params:
        """A fixed symmetric matrix times the gradient: the matrix by which a step multiplies it, here 1."""
        return grads

    def update(self, params: Params, grads: Params, state: State, lr: Tensor | float) -> tuple[Params, State]:
        """One step of gradient descent."""
        return tree_map(lambda p, g: p - lr * g, params, self.metric(grads)), {"step": state["step"] + 1}
