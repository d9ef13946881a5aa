"""The direct term alone."""

from __future__ import annotations

from torch import Tensor

from eblvm_lit.core.autograd import grad_and_value
from eblvm_lit.core.functional import Params
from eblvm_lit.hypergradients.base import BilevelProblem, Hypergradient

__all__ = ["Direct"]


class Direct(Hypergradient):
    r"""The partial gradient :math:`\partial_\theta J(\theta, \phi)`, as if phi did not depend on theta (N = 0).

    Example:
        >>> import torch
        >>> problem = BilevelProblem(lambda theta, phi: theta["t"] * phi["f"], None, None, None, 0.1)
        >>> Direct()(problem, {"t": torch.tensor(1.0)}, {"f": torch.tensor(3.0)})[1]
        {'t': tensor(3.)}
    """

    n_draws = 0

    def __call__(self, problem: BilevelProblem, theta: Params, phi: Params) -> tuple[Tensor, Params]:
        """The value of J and its partial gradient with respect to theta."""
        grads, value = grad_and_value(problem.upper)(theta, phi)
        return value, grads
