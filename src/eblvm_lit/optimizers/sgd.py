"""Plain gradient descent as a pure function."""

from __future__ import annotations

from torch import Tensor

from eblvm_lit.core.functional import Params
from eblvm_lit.core.tensors import tree_map
from eblvm_lit.optimizers.base import Optimizer, State

__all__ = ["SGD"]


class SGD(Optimizer):
    r"""Plain gradient descent :math:`p \leftarrow p - \alpha g`, as in the equations of the papers.

    Example:
        >>> import torch
        >>> sgd, params = SGD(lr=0.1), {"x": torch.zeros(1)}
        >>> sgd.update(params, {"x": torch.ones(1)}, sgd.init(params), 0.1)[0]
        {'x': tensor([-0.1000])}
    """

    def metric(self, grads: Params) -> Params:
        """Multiply the gradient by a fixed symmetric preconditioner, which is the identity for SGD."""
        return grads

    def update(self, params: Params, grads: Params, state: State, lr: Tensor | float) -> tuple[Params, State]:
        """Compute one step of gradient descent; see :meth:`Optimizer.update`."""
        return tree_map(lambda p, g: p - lr * g, params, self.metric(grads)), {"step": state["step"] + 1}
