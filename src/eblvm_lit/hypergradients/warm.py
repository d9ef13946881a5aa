"""The implicit hypergradient with an adjoint vector that is kept from one iteration to the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from eblvm_lit.core.functional import Params
from eblvm_lit.core.tensors import flatten, tree_map, unflatten
from eblvm_lit.hypergradients.base import BilevelProblem, LinearMap, LowerLevel, adam_preconditioner, needs_adam
from eblvm_lit.hypergradients.implicit import CurvatureHypergradient, conjugate_gradient

__all__ = ["Warm"]


class Warm(CurvatureHypergradient):
    r"""The implicit hypergradient with a warm-started linear solver that makes a few steps in each iteration.

    .. math:: \partial_\theta J + \partial_\theta \partial_\phi G\, w, \quad
        w \leftarrow w - \rho\, D^{-1} ((\partial_\phi^2 G + \lambda I)\, w + \partial_\phi J)

    w is kept from one iteration to the next. If theta and phi change slowly, one step of w in each iteration, with
    the noise of that iteration, is therefore enough. Reference: Dagreou et al. 2022, SOBA. The preconditioner D, taken
    from the lower level's Adam, is an addition to SOBA.

    Args:
        n_steps: The number of steps of w in each iteration.
        step_size: The step size rho. None replaces the steps by conjugate-gradient steps, which need no step size but
            one more curvature product in each iteration.
        damping: The number lambda, which is added to the curvature's diagonal.
        curvature: ``hessian`` for the Hessian of G, or ``fisher`` for the Fisher information of q in its place, which
            requires a KL divergence in the lower level.
        preconditioner: ``adam`` for D with the second moments of the lower level's Adam, D = sqrt(s) + eps, or
            ``none`` for D = 1.
        reset_every: The number of iterations after which w is set to zero again; never if not given.

    Example:
        >>> theta, phi = {"t": torch.tensor(1.0)}, {"f": torch.tensor(1.0)}
        >>> problem = BilevelProblem(  # phi* = theta, J = phi^2 / 2: the hypergradient is theta
        ...     upper=lambda theta, phi: phi["f"] ** 2 / 2,
        ...     lower=lambda theta, phi, i: (phi["f"] - theta["t"]) ** 2 / 2,
        ...     optimizer=None, state={}, lr=0.1)
        >>> warm = Warm(step_size=0.5, curvature="hessian", preconditioner="none")
        >>> state = warm.init_state(phi)
        >>> for _ in range(4):
        ...     _, gradient, state = warm(problem, theta, phi, state)
        ...     print(gradient["t"].item())
        0.5
        0.75
        0.875
        0.9375
    """

    def __init__(
        self,
        *,
        n_steps: PositiveInt = 1,
        step_size: PositiveFloat | None = None,
        damping: NonNegativeFloat = 0.0,
        curvature: Literal["hessian", "fisher"] = "fisher",
        preconditioner: Literal["adam", "none"] = "adam",
        reset_every: PositiveInt | None = None,
    ) -> None:
        super().__init__(damping=damping, curvature=curvature)
        self.n_steps = n_steps
        self.step_size = step_size
        self.preconditioner = preconditioner
        self.reset_every = reset_every

    @property
    def title(self) -> str:
        """Return a short name of the hypergradient, with the number of steps."""
        return f"warm-started implicit hypergradient, {self.n_steps} step{'s' if self.n_steps > 1 else ''} an iteration"

    def check(self, lower: LowerLevel) -> None:
        """Raise a ConfigError if these settings do not support the lower level's divergence or optimizer.

        Raises:
            ConfigError: If ``curvature="fisher"`` without a KL divergence, or ``preconditioner="adam"`` without Adam.
        """
        super().check(lower)
        if self.preconditioner == "adam":
            needs_adam(lower)

    def init_state(self, phi: Params) -> dict[str, Tensor]:
        """Return a zero vector as the initial adjoint w, and zero as the count of iterations."""
        w = torch.zeros_like(flatten(phi))
        return {"adjoint": w, "adjoint_age": torch.zeros((), dtype=torch.int64, device=w.device)}

    def adjoint(
        self, problem: BilevelProblem, theta: Params, phi: Params, outer: Params, state: Mapping[str, Tensor]
    ) -> tuple[Params, dict[str, Tensor]]:
        """Return the adjoint w after the steps of this iteration, and the tensors to keep for the next iteration."""
        age = state["adjoint_age"]
        flat = state["adjoint"]
        if self.reset_every is not None:
            flat = torch.where(age % self.reset_every == 0, torch.zeros_like(flat), flat)
        w = self.solve(problem, self.curvature_product(problem, theta, phi), outer, unflatten(flat, phi))
        return w, {"adjoint": flatten(w), "adjoint_age": age + 1}

    def solve(self, problem: BilevelProblem, matvec: LinearMap, outer: Params, w: Params) -> Params:
        """Improve an approximate solution w of A w = -dJ/dphi by ``n_steps`` steps. ``matvec`` multiplies by A."""
        precondition: LinearMap = adam_preconditioner(problem) if self.preconditioner == "adam" else lambda r: r
        if self.step_size is None:
            b = tree_map(torch.neg, outer)
            return conjugate_gradient(matvec, b, self.n_steps, start=w, precondition=precondition)
        rho = self.step_size
        for _ in range(self.n_steps):
            direction = precondition(tree_map(torch.add, matvec(w), outer))
            w = tree_map(lambda x, d: x - rho * d, w, direction)
        return w
