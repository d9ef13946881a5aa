"""The hypergradients that are measured on quadratic problems, each with its theoretical rate of convergence."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.quadratics import Quadratic
from eblvm_lit.hypergradients.base import Hypergradient
from eblvm_lit.hypergradients.finite_difference import FiniteDifference
from eblvm_lit.hypergradients.implicit import Implicit
from eblvm_lit.hypergradients.penalty import Penalty
from eblvm_lit.hypergradients.unroll import Unroll
from eblvm_lit.hypergradients.warm import Warm

__all__ = ["ESTIMATORS", "OUTER", "Estimator", "enough", "penalty"]

# With these values, the biases of the finite difference and of the penalty are below the goal of the table.
RADIUS = 1e-3  # the radius r of the finite difference
MULTIPLIER = 1e4  # lambda of the penalty, divided by the condition number kappa
HESSIAN = {"curvature": "hessian", "preconditioner": "none"}


def enough(kappa: float) -> int:
    """Return a number of conjugate-gradient steps that suffices to solve a system with condition number kappa."""
    return min(math.ceil(10 * math.sqrt(kappa)), 400)


def penalty(multiplier: float, n_steps: int = 1) -> Penalty:
    return Penalty(n_steps=n_steps, multiplier=multiplier, growth=0.0, preconditioner="none")


def difference_limit(toy: Quadratic, radius: float = RADIUS) -> Tensor:
    """Compute the limit of the finite-difference hypergradient for many steps of its linear solver.

    With the exact solution w, its only error is the cubic part of dG/dtheta.
    """
    phi = toy.optimum()
    w = -toy.of_hessian(torch.reciprocal) @ toy.outer(phi)
    cubic = toy.quartic * (radius / torch.linalg.vector_norm(w)) ** 2 * w**3
    return toy.direct(phi) - toy.A.T @ (toy.H @ w + cubic)


@dataclass(frozen=True)
class Estimator:
    """A hypergradient with its theoretical rate of convergence, which is one row of the table.

    Attributes:
        make: A function of (kappa, n) that makes the hypergradient with n steps. If the hypergradient carries a state,
            it makes a fixed number of steps per iteration instead.
        factor: A function of kappa that returns the theoretical factor by which a step multiplies the error.
        bound: Whether this factor is an upper bound, for the worst spectrum.
        carried: Number of steps per iteration, if a state is carried from one iteration to the next; otherwise 0.
        reverse: Number of products in the reverse pass of a step, which the count of G's evaluations does not include.
        quartic: The coefficient q of the problem's quartic term.
        limit: A function of the problem that returns the estimate's limit for many steps, with phi at phi*.
        most: A function of kappa that returns a number of steps after which the estimate no longer changes.
    """

    make: Callable[[float, int], Hypergradient]
    factor: Callable[[float], float]
    bound: bool = False
    carried: int = 0
    reverse: int = 0
    quartic: float = 0.0
    limit: Callable[[Quadratic], Tensor] = Quadratic.hypergradient
    most: Callable[[float], int] = lambda _: sys.maxsize


def descent(kappa: float) -> float:
    return 1 - 1 / kappa


def conjugate(kappa: float) -> float:
    return (math.sqrt(kappa) - 1) / (math.sqrt(kappa) + 1)


ESTIMATORS = {
    "unroll": Estimator(lambda _, n: Unroll(n_unroll=n, descent="plain", step_size=1.0), descent, reverse=1),
    "implicit, Neumann": Estimator(lambda _, n: Implicit(n_terms=n, solver="neumann", step_size=1.0), descent),
    "implicit, CG": Estimator(lambda _, n: Implicit(n_terms=n), conjugate, bound=True, most=enough),
    "warm, descent": Estimator(lambda *_: Warm(step_size=1.0, **HESSIAN), descent, carried=1),
    "warm, CG": Estimator(lambda *_: Warm(**HESSIAN), lambda k: (k - 1) / (k + 1), bound=True, carried=1),
    "finite difference, CG": Estimator(
        lambda _, n: FiniteDifference(adjoint=Implicit(n_terms=n), radius=RADIUS),
        *(conjugate, True),
        quartic=1.0,
        limit=difference_limit,
        most=enough,
    ),
    "penalty": Estimator(
        lambda kappa, _: penalty(MULTIPLIER * kappa),
        lambda kappa: 1 - 1 / kappa - 1 / (MULTIPLIER * kappa),
        carried=1,
        limit=lambda toy: toy.penalised(MULTIPLIER * toy.kappa)[1],
    ),
}
# Each function of kappa returns a hypergradient, the step size of theta, and the number of products in the reverse pass
# of an iteration.
OUTER: dict[str, Callable[[float], tuple[Hypergradient, float, int]]] = {
    "N = 0": lambda _: (Unroll(n_unroll=0), 0.5, 0),
    "N = 1": lambda _: (Unroll(n_unroll=1, descent="plain", step_size=1.0), 0.5, 1),
    # The other hypergradients use the current phi, w and y - z, which follow theta with a delay of about kappa steps.
    # So theta needs small steps.
    "implicit, CG": lambda kappa: (Implicit(n_terms=math.ceil(3 * math.sqrt(kappa))), 0.4 / kappa, 0),
    "warm, descent": lambda kappa: (Warm(step_size=1.0, **HESSIAN), 0.4 / kappa, 0),
    "penalty": lambda kappa: (penalty(100 * kappa, 1), 0.4 / kappa, 0),
    "penalty, 10 steps": lambda kappa: (penalty(100 * kappa, 10), 0.4 / kappa, 0),
}
