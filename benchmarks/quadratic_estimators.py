"""The hypergradients that are measured on quadratic problems, each with its rate in theory."""

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

# The biases of both are below the goal of the table.
RADIUS = 1e-3  # r of the finite difference
MULTIPLIER = 1e4  # lambda of the penalty, in condition numbers
HESSIAN = {"curvature": "hessian", "preconditioner": "none"}


def enough(kappa: float) -> int:
    """Steps of conjugate gradient that solve a system here."""
    return min(math.ceil(10 * math.sqrt(kappa)), 400)


def penalty(multiplier: float, n_steps: int = 1) -> Penalty:
    return Penalty(n_steps=n_steps, multiplier=multiplier, growth=0.0, preconditioner="none")


def difference_limit(toy: Quadratic, radius: float = RADIUS) -> Tensor:
    """What the finite difference gives with the exact w: the cubic part of dG/dtheta stays."""
    phi = toy.optimum()
    w = -toy.of_hessian(torch.reciprocal) @ toy.outer(phi)
    cubic = toy.quartic * (radius / torch.linalg.vector_norm(w)) ** 2 * w**3
    return toy.direct(phi) - toy.A.T @ (toy.H @ w + cubic)


@dataclass(frozen=True)
class Estimator:
    """A row of the table.

    Attributes:
        make: (kappa, n) -> the hypergradient of n steps, or of a fixed number where its state is carried.
        factor: kappa -> what a step multiplies the error with, in theory.
        bound: Whether that is an upper bound of the worst spectrum.
        carried: Steps of an iteration, where a state is carried from one to the next.
        reverse: Products of the reverse pass in each step, which evaluates G no more.
        quartic: Of the problem.
        limit: Where it converges to, with phi at phi*.
        most: kappa -> steps after which nothing changes.
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
# kappa -> the hypergradient, the step size of theta, products of the reverse pass
OUTER: dict[str, Callable[[float], tuple[Hypergradient, float, int]]] = {
    "N = 0": lambda _: (Unroll(n_unroll=0), 0.5, 0),
    "N = 1": lambda _: (Unroll(n_unroll=1, descent="plain", step_size=1.0), 0.5, 1),
    # the others read phi, w and y - z where they are, which is kappa steps late: theta must not be faster
    "implicit, CG": lambda kappa: (Implicit(n_terms=math.ceil(3 * math.sqrt(kappa))), 0.4 / kappa, 0),
    "warm, descent": lambda kappa: (Warm(step_size=1.0, **HESSIAN), 0.4 / kappa, 0),
    "penalty": lambda kappa: (penalty(100 * kappa, 1), 0.4 / kappa, 0),
    "penalty, 10 steps": lambda kappa: (penalty(100 * kappa, 10), 0.4 / kappa, 0),
}
