"""The fully first-order hypergradient: a second posterior under a penalty."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat
from torch import Tensor

from eblvm_lit.core.functional import Params, grad, grad_and_value
from eblvm_lit.core.tensors import flatten, tree_map, unflatten
from eblvm_lit.hypergradients.base import (
    BilevelProblem,
    Hypergradient,
    HypergradientStep,
    LinearMap,
    LowerLevel,
    adam_preconditioner,
    needs_adam,
)

__all__ = ["Penalty"]


class Penalty(Hypergradient):
    r"""The gradient of J under the penalty :math:`\lambda (G(\theta, y) - \min_z G(\theta, z))`.

    .. math:: y \leftarrow y - \alpha D^{-1} (\partial_\phi G(\theta, y) + \partial_\phi J(\theta, y) / \lambda), \quad
        z \leftarrow z - \alpha D^{-1} \partial_\phi G(\theta, z)
    .. math:: \partial_\theta J(\theta, y) + \lambda\, (\partial_\theta G(\theta, y) - \partial_\theta G(\theta, z))

    y is a second posterior. No second derivative of G is taken. As lambda grows, y approaches phi* and the gradient the
    implicit one, with an error of order 1 / lambda. Reference: Kwon et al. 2023, Algorithm 1 (F2SA), whose step of y
    times lambda this is.

    The difference y - z matters, and lambda multiplies it with all of its noise. So both take their steps with the same
    noise; in each iteration z starts at the live phi, which the K lower steps fit, and y as far from z as it ended.

    Args:
        n_steps: Steps of y and z in an iteration.
        multiplier: lambda at the start.
        growth: What is added to lambda in each iteration.
        max_multiplier: Where lambda stops growing; nowhere if not given.
        step_size: alpha; the lower level's learning rate if not given.
        preconditioner: ``adam``, with D the root of the second moments of the lower level's Adam, or ``none``.

    Example:
        >>> import torch
        >>> theta, phi = {"t": torch.tensor(1.0)}, {"f": torch.tensor(1.0)}
        >>> problem = BilevelProblem(  # phi* = theta, J = phi^2 / 2: the hypergradient is theta
        ...     upper=lambda theta, phi: phi["f"] ** 2 / 2,
        ...     lower=lambda theta, phi, i: (phi["f"] - theta["t"]) ** 2 / 2,
        ...     optimizer=None, state={}, lr=0.5)
        >>> penalty = Penalty(n_steps=20, multiplier=100.0, growth=0.0, preconditioner="none")
        >>> round(penalty(problem, theta, phi, penalty.init_state(phi)).gradient["t"].item(), 2)
        0.99
    """

    def __init__(
        self,
        *,
        n_steps: NonNegativeInt = 1,
        multiplier: PositiveFloat = 1.0,
        growth: NonNegativeFloat = 0.1,
        max_multiplier: PositiveFloat | None = None,
        step_size: PositiveFloat | None = None,
        preconditioner: Literal["adam", "none"] = "adam",
    ) -> None:
        self.n_steps = n_steps
        self.step_size = step_size
        self.preconditioner = preconditioner
        self.multiplier = multiplier
        self.growth = growth
        self.max_multiplier = max_multiplier
        self.n_draws = n_steps + 1

    @property
    def title(self) -> str:
        """The number of steps."""
        return f"first-order penalty hypergradient, {self.n_steps} step{'s' if self.n_steps > 1 else ''} an iteration"

    def check(self, lower: LowerLevel) -> None:
        """Refuse a preconditioner without Adam.

        Raises:
            ConfigError: In that case.
        """
        if self.preconditioner == "adam":
            needs_adam(lower)

    def init_state(self, phi: Params) -> dict[str, Tensor]:
        """y - z = 0, as one vector, and lambda."""
        shift = torch.zeros_like(flatten(phi))
        return {"penalty_shift": shift, "penalty_multiplier": shift.new_tensor(self.multiplier)}

    def __call__(
        self, problem: BilevelProblem, theta: Params, phi: Params, state: Mapping[str, Tensor] | None = None
    ) -> HypergradientStep:
        """J at y, and the gradient of J and its penalty with respect to theta."""
        state = state or self.init_state(phi)
        multiplier = state["penalty_multiplier"]
        y, z = self.fit(problem, theta, phi, unflatten(state["penalty_shift"], phi), multiplier)

        def penalised(theta: Params) -> tuple[Tensor, Tensor]:
            value = problem.upper(theta, y)
            excess = problem.lower(theta, y, self.n_steps) - problem.lower(theta, z, self.n_steps)
            return value + multiplier * excess, value

        grads, (_, value) = grad_and_value(penalised, has_aux=True)(theta)
        grown = multiplier + self.growth
        if self.max_multiplier is not None:
            grown = grown.clamp(max=self.max_multiplier)
        kept = {"penalty_shift": flatten(tree_map(torch.sub, y, z)), "penalty_multiplier": grown}
        return HypergradientStep(value, grads, kept)

    def fit(
        self, problem: BilevelProblem, theta: Params, phi: Params, shift: Params, multiplier: Tensor
    ) -> tuple[Params, Params]:
        """y and z after this iteration's steps, which see the same noise."""
        lr = problem.lr if self.step_size is None else self.step_size
        precondition: LinearMap = adam_preconditioner(problem) if self.preconditioner == "adam" else lambda r: r

        def descend(p: Params, loss: Callable[[Params], Tensor]) -> Params:
            direction = precondition(problem.whole(grad(loss)(p)))
            return tree_map(lambda x, d: x - lr * d, p, direction)

        y = tree_map(torch.add, phi, shift)
        z = phi
        for i in range(self.n_steps):
            y = descend(y, lambda y, i=i: problem.lower(theta, y, i) + problem.upper(theta, y) / multiplier)
            z = descend(z, lambda z, i=i: problem.lower(theta, z, i))
        return y, z
