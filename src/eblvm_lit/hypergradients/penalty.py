"""A hypergradient that needs only first derivatives, because a penalty replaces the lower-level problem."""

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
    r"""The gradient of a penalised upper loss with respect to theta; the penalty replaces the lower-level problem.

    .. math:: J(\theta, y) + \lambda\, (G(\theta, y) - \min_z G(\theta, z))

    The steps of y and z, and the gradient, are

    .. math:: y \leftarrow y - \alpha D^{-1} (\partial_\phi G(\theta, y) + \partial_\phi J(\theta, y) / \lambda), \quad
        z \leftarrow z - \alpha D^{-1} \partial_\phi G(\theta, z)
    .. math:: \partial_\theta J(\theta, y) + \lambda\, (\partial_\theta G(\theta, y) - \partial_\theta G(\theta, z))

    y and z are the parameters of two posteriors. No second derivative of G is needed. As lambda grows, y approaches
    phi* and the gradient approaches the implicit hypergradient, with an error of order 1 / lambda. Reference: Kwon et
    al. 2023, Algorithm 1 (F2SA), whose step of y is lambda times the one above.

    The gradient depends on the difference y - z, and lambda multiplies the noise of this difference. Therefore the
    steps of y and z use the same noise. In each iteration z starts at the current phi, which the K lower steps fit, and
    y starts at the same distance y - z that the previous iteration ended with.

    Args:
        n_steps: The number of steps of y and of z in each iteration.
        multiplier: The value of lambda in the first iteration.
        growth: The number added to lambda after each iteration.
        max_multiplier: The value at which lambda stops growing; it grows without limit if not given.
        step_size: The step size alpha; the lower level's learning rate if not given.
        preconditioner: ``adam`` for D with the second moments of the lower level's Adam, D = sqrt(s) + eps, or
            ``none`` for D = 1.

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
        """Return a short name of the hypergradient, with the number of steps."""
        return f"first-order penalty hypergradient, {self.n_steps} step{'s' if self.n_steps > 1 else ''} an iteration"

    def check(self, lower: LowerLevel) -> None:
        """Raise a ConfigError if the preconditioner needs Adam but the lower level uses another optimizer.

        Raises:
            ConfigError: If ``preconditioner="adam"`` and the lower level's optimizer is not Adam.
        """
        if self.preconditioner == "adam":
            needs_adam(lower)

    def init_state(self, phi: Params) -> dict[str, Tensor]:
        """Return the initial values of the difference y - z, which is zero, and of the penalty's weight lambda."""
        shift = torch.zeros_like(flatten(phi))
        return {"penalty_shift": shift, "penalty_multiplier": shift.new_tensor(self.multiplier)}

    def __call__(
        self, problem: BilevelProblem, theta: Params, phi: Params, state: Mapping[str, Tensor] | None = None
    ) -> HypergradientStep:
        """Compute the upper loss J at the parameters y, and the gradient of the penalised loss in theta."""
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
        """Return the parameters y and z after this iteration's steps, which use the same noise for y and for z."""
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
