"""Gradient descent on a linear layer in coordinates that whiten its inputs."""

from __future__ import annotations

import torch
from torch import Tensor

from eblvm_lit.core.functional import Params
from eblvm_lit.optimizers.sgd import SGD

__all__ = ["WhitenedDescent"]


class WhitenedDescent(SGD):
    r"""Gradient descent on a linear layer's weights W (m, d) and biases b (m,) with a fixed preconditioner.

    .. math:: (W, b) \leftarrow (W, b) - \alpha\, D^{-1} (g_W, g_b)\, S^{-1}, \quad
        S = \tfrac1n \sum_i z_i z_i^\top, \; z = (v, 1), \quad D = \mathrm{diag}(c)

    This equals plain gradient descent in coordinates in which the inputs have the second moments S = I and the loss has
    the curvature c = 1 in each output. If the Hessian is approximately :math:`D \otimes S`, the descent converges
    equally fast in all directions.

    Args:
        lr: The learning rate alpha.
        inputs: The layer's inputs v, shape (n, d), n > d.
        curvature: The curvature c of the loss in each output, shape (m,), positive.
        prefix: The prefix of the parameters' names before ``weight`` and ``bias``.

    Example:
        >>> v, curvature = torch.tensor([[1.0], [3.0]]), torch.tensor([1.0])
        >>> sgd = WhitenedDescent(lr=1.0, inputs=v, curvature=curvature, prefix="linear.")
        >>> params = {"linear.weight": torch.zeros(1, 1), "linear.bias": torch.zeros(1)}
        >>> grads = {"linear.weight": torch.tensor([[-5.0]]), "linear.bias": torch.tensor([-2.0])}
        >>> # one step of unit length down the mean of (W v + b - v)^2 / 2, whose optimum is W = 1, b = 0
        >>> moved, _ = sgd.update(params, grads, {"step": 0}, 1.0)
        >>> round(moved["linear.weight"].item(), 4), bool(moved["linear.bias"].abs() < 1e-5)
        (1.0, True)
    """

    def __init__(self, *, lr: float, inputs: Tensor, curvature: Tensor, prefix: str) -> None:
        super().__init__(lr=lr)
        z = torch.cat([inputs, inputs.new_ones(len(inputs), 1)], dim=1)
        self.inverse = torch.linalg.inv(z.T @ z / len(z))
        self.curvature = curvature[:, None]
        self.prefix = prefix

    def metric(self, grads: Params) -> Params:
        """Apply the preconditioner to the gradients of the weights (m, d) and the biases (m,)."""
        weight = f"{self.prefix}weight"
        bias = f"{self.prefix}bias"
        whole = torch.cat([grads[weight], grads[bias][:, None]], dim=1) @ self.inverse / self.curvature
        return {weight: whole[:, :-1], bias: whole[:, -1]}
