"""A benchmark of the cost and the bias of hypergradients on quadratic problems.

Run it with python -m benchmarks.bilevel_quadratic.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.quadratic_estimators import ESTIMATORS, OUTER, Estimator, enough, penalty
from benchmarks.quadratic_figures import draw_errors, draw_outer
from benchmarks.quadratics import Quadratic, relative_error
from eblvm_lit.core.functional import grad, plain_autograd
from eblvm_lit.figures.style import save
from eblvm_lit.hypergradients.base import Hypergradient
from eblvm_lit.hypergradients.finite_difference import FiniteDifference
from eblvm_lit.hypergradients.implicit import Implicit

Row = dict[str, float]

ROOT = Path(__file__).resolve().parents[1]
DPI = 100  # a low resolution, so that the file of a figure takes less than 150 kB
KAPPAS = (10, 100, 1_000, 10_000)
SMALL_KAPPAS = (10, 100)
AWAY = 1e-2  # the distance of phi from the lower optimum phi*, relative to the norm of phi*
# The estimators that the figure shows away from phi*. Every other estimator has the same errors there as one of them.
SHOWN_AWAY = ("unroll", "implicit, CG", "warm, descent", "penalty")
GOAL = 1e-3
OUTER_GOAL = 1e-2
# Rates are measured from errors above this value. In smaller errors, lambda and kappa amplify rounding errors.
RESOLVED = 1e-6
DIVERGED = 1e3
LEGEND = f"""\
A gradient: 1 - the factor of a step's error (in theory; >= where that is a bound); evaluations of the lower level after
which the relative error is below {GOAL:g}. Orders are of the error, measured (in theory).
A descent: evaluations after which theta's relative distance to the solution is below {OUTER_GOAL:g}; the last distance.
"""


def sweep(estimator: Estimator, kappa: float, budget: float, distance: float = 0.0) -> list[Row]:
    """Measure the error of a hypergradient for growing numbers of steps.

    The sweep ends when the budget is spent, when the error approaches rounding errors, or when more steps no longer
    change the estimate.

    Args:
        estimator: The hypergradient.
        kappa: The condition number of the lower level.
        budget: The number of evaluations of the lower level after which the sweep ends.
        distance: The distance between phi and phi*, in norms of phi*.

    Returns:
        A list with the steps, the evaluations of the lower level, the relative error, and the relative distance from
        the estimator's own limit.
    """
    toy = Quadratic(kappa, quartic=estimator.quartic)
    rows = []
    steps = 0
    theta = {"theta": toy.theta}
    phi = {"phi": toy.optimum(distance)}
    truth = toy.hypergradient()
    limit = estimator.limit(toy)
    problem = toy.problem()
    hypergradient = estimator.make(kappa, 1)
    state = hypergradient.init_state(phi)
    while steps < estimator.most(kappa) and (not rows or spare(rows[-1], budget)):
        due = max(steps + 1, int(1.5 * steps))
        if not estimator.carried:
            hypergradient = estimator.make(kappa, due)
            steps = due
            toy.n_evaluations = 0
            gradient = hypergradient(problem, theta, phi).gradient
        while steps < due:
            _, gradient, state = hypergradient(problem, theta, phi, state)
            steps += estimator.carried
        evaluations = toy.n_evaluations + estimator.reverse * steps
        error = relative_error(gradient["theta"], truth)
        to_limit = relative_error(gradient["theta"], limit)
        rows.append({"steps": steps, "evaluations": evaluations, "error": error, "to_limit": to_limit})
    return rows


def spare(row: Row, budget: float) -> bool:
    return row["evaluations"] < budget and row["to_limit"] > RESOLVED / 100


def rate(rows: list[Row]) -> float:
    """Compute the mean factor by which one step multiplies the distance of the estimate from its limit.

    The mean is taken over the later half of the steps, without steps whose distance is close to rounding errors.
    """
    rows = [row for row in rows if row["to_limit"] > RESOLVED]
    first = [row for row in rows[:-1] if row["steps"] <= 0.6 * rows[-1]["steps"]][-1]
    last = rows[-1]
    return (last["to_limit"] / first["to_limit"]) ** (1 / (last["steps"] - first["steps"]))


def reached(rows: list[Row], goal: float) -> float:
    """Compute the number of evaluations after which the error stays below the goal.

    Between two measurements, the logarithm of the error is interpolated linearly.
    """
    above = max((i for i, row in enumerate(rows) if not row["error"] < goal), default=-1)
    if above == len(rows) - 1:
        return math.inf
    if above < 0:
        return rows[0]["evaluations"]
    before = rows[above]
    after = rows[above + 1]
    share = math.log(before["error"] / goal) / math.log(before["error"] / after["error"])
    return before["evaluations"] + share * (after["evaluations"] - before["evaluations"])


def difference_bias(kappa: float) -> list[Row]:
    """Measure the error of the finite-difference hypergradient for several radii r of the difference."""
    rows = []
    toy = Quadratic(kappa, quartic=1.0)
    theta = {"theta": toy.theta}
    phi = {"phi": toy.optimum()}
    for exponent in range(-7, 1):
        radius = 10**exponent
        found = FiniteDifference(adjoint=Implicit(n_terms=enough(kappa)), radius=radius)(toy.problem(), theta, phi)
        rows.append({"at": radius, "error": relative_error(found.gradient["theta"], toy.hypergradient())})
    return rows


def penalty_bias(kappa: float) -> list[Row]:
    """Measure the error of the penalty hypergradient for several multipliers lambda.

    The difference of its two variables, y - z, is set to the known limit, so that only the bias remains.
    """
    rows = []
    toy = Quadratic(kappa)
    theta = {"theta": toy.theta}
    phi = {"phi": toy.optimum()}
    for exponent in range(-2, 6):
        multiplier = kappa * 10**exponent
        hypergradient = penalty(multiplier)
        state = {**hypergradient.init_state(phi), "penalty_shift": toy.penalised(multiplier)[0]}
        found = hypergradient(toy.problem(), theta, phi, state).gradient["theta"]
        rows.append({"at": multiplier, "error": relative_error(found, toy.hypergradient())})
    return rows


def distance_bias(kappa: float) -> list[Row]:
    """Measure the error of the implicit hypergradient for several distances of phi from the lower optimum phi*."""
    rows = []
    toy = Quadratic(kappa)
    for exponent in range(-4, 1):
        distance = 10**exponent
        phi = {"phi": toy.optimum(distance)}
        found = Implicit(n_terms=enough(kappa))(toy.problem(), {"theta": toy.theta}, phi).gradient["theta"]
        rows.append({"at": distance, "error": relative_error(found, toy.hypergradient())})
    return rows


# For each kind of bias: a function that measures the bias for a given kappa; the order that theory predicts; and a
# function that returns, for a given kappa, the interval of r, lambda or the distance in which the order is measured.
BIASES: dict[str, tuple[Callable[[float], list[Row]], int, Callable[[float], tuple[float, float]]]] = {
    "finite difference, order in r": (difference_bias, 2, lambda _: (1e-2, 1e-1)),
    "penalty, order in λ": (penalty_bias, -1, lambda kappa: (1e3 * kappa, 1e4 * kappa)),
    "implicit, order in distance": (distance_bias, 1, lambda _: (1e-2, 1e-1)),
}


def order(rows: list[Row], ends: tuple[float, float]) -> float:
    """Compute the order of an error: the slope of log(error) as a function of log(argument).

    The slope is measured between the two arguments ``ends``.
    """
    near = [min(rows, key=lambda row, end=end: abs(math.log(row["at"] / end))) for end in ends]
    return math.log(near[1]["error"] / near[0]["error"]) / math.log(near[1]["at"] / near[0]["at"])


def descend(made: tuple[Hypergradient, float, int], kappa: float, budget: float) -> list[Row]:
    """Minimise the bi-level problem by gradient descent from zero.

    Each iteration makes one step of the lower level and one step of the outer level.

    Args:
        made: The hypergradient, the step size of theta, and the number of products of a reverse pass per iteration.
        kappa: The condition number of the lower level.
        budget: The number of evaluations of the lower level after which the descent ends.

    Returns:
        A list with the evaluations of the lower level and the relative distance of theta from the solution.
    """
    hypergradient, step_size, reverse = made
    toy = Quadratic(kappa)
    rows = [{"evaluations": 0, "error": 1.0}]
    n = 0
    theta = {"theta": torch.zeros_like(toy.theta)}
    phi = {"phi": torch.zeros_like(toy.r)}
    problem = toy.problem()
    state = hypergradient.init_state(phi)
    solution = toy.solution()
    while rows[-1]["evaluations"] < budget and rows[-1]["error"] < DIVERGED:
        due = max(n + 1, int(1.05 * n))
        while n < due:
            phi = {"phi": phi["phi"] - grad(toy.lower, argnums=1)(theta, phi, 0)["phi"]}
            _, gradient, state = hypergradient(problem, theta, phi, state)
            theta = {"theta": theta["theta"] - step_size * gradient["theta"]}
            n = n + 1
        error = relative_error(theta["theta"], solution)
        rows.append({"evaluations": toy.n_evaluations + reverse * n, "error": error})
    return rows


def measure(budget: int) -> dict[str, Any]:
    """Run all measurements, and return their results by kind, condition number kappa and name."""
    found: dict[str, Any] = {"errors": {}, "away": {}, "biases": {}, "outer": {}}
    for kappa in KAPPAS:
        found["errors"][kappa] = {name: sweep(estimator, kappa, budget) for name, estimator in ESTIMATORS.items()}
        found["biases"][kappa] = {name: rows(kappa) for name, (rows, *_) in BIASES.items()}
    for kappa in SMALL_KAPPAS:
        # A small budget suffices, because away from phi* the errors of all estimators except unrolling soon stop
        # changing.
        most = min(budget, 30 * kappa)
        found["away"][kappa] = {name: sweep(ESTIMATORS[name], kappa, most, AWAY) for name in SHOWN_AWAY}
        most = min(250 * kappa, 3 * budget)
        found["outer"][kappa] = {name: descend(make(kappa), kappa, most) for name, make in OUTER.items()}
    return found


def tables(found: dict[str, Any]) -> Iterator[Table]:
    """Make Markdown tables of the convergence rates, the orders of the biases, and the descents."""

    def empty(first: str, kappas: tuple[int, ...]) -> Table:
        table = Table(box=box.MARKDOWN)
        table.add_column(first, no_wrap=True)
        for kappa in kappas:
            table.add_column(f"κ = {kappa:,}", justify="right", no_wrap=True)
        return table

    table = empty("a gradient", KAPPAS)
    for name, estimator in ESTIMATORS.items():
        cells = []
        for kappa in KAPPAS:
            rows = found["errors"][kappa][name]
            sign = ">= " if estimator.bound else ""
            theory = f"{1 - rate(rows):.3g} ({sign}{1 - estimator.factor(kappa):.3g})"
            cells.append(f"{theory}; {evaluations(rows, GOAL)}")
        table.add_row(name, *cells)
    for name, (_, power, ends) in BIASES.items():
        orders = (order(found["biases"][kappa][name], ends(kappa)) for kappa in KAPPAS)
        table.add_row(name, *(f"{value:.3f} ({power})" for value in orders))
    yield table
    table = empty("a descent", SMALL_KAPPAS)
    for name in OUTER:
        rows = (found["outer"][kappa][name] for kappa in SMALL_KAPPAS)
        table.add_row(name, *(f"{evaluations(row, OUTER_GOAL)}; {last_distance(row)}" for row in rows))
    yield table


def evaluations(rows: list[Row], goal: float) -> str:
    needed = reached(rows, goal)
    return f"{needed:,.0f}" if needed < math.inf else f"> {rows[-1]['evaluations']:,}"


def last_distance(rows: list[Row]) -> str:
    return f"{rows[-1]['error']:.1g}" if rows[-1]["error"] < DIVERGED else "diverges"


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="python -m benchmarks.bilevel_quadratic", description=__doc__)
    add = found.add_argument
    add("--budget", type=int, default=2_000, help="evaluations of the lower level for a gradient (default: 2000)")
    add("--list", action="store_true", help="print the names of the estimators and run nothing")
    add("--out", type=Path, default=ROOT / "outputs" / "bench", help="folder of the figures and the JSON file")
    return found


def main() -> None:
    options = parser().parse_args()
    if options.list:
        print("\n".join(ESTIMATORS))
        return
    torch.set_num_threads(1)
    with plain_autograd():
        found = measure(options.budget)
    options.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"budget": options.budget, **found}, indent=1)
    (options.out / "bilevel_quadratic.json").write_text(text + "\n")
    paths = save(draw_errors(found), options.out / "bilevel_quadratic", dpi=DPI)
    paths += save(draw_outer(found), options.out / "bilevel_quadratic_outer", dpi=DPI)
    console = Console(width=160)  # wide enough for the lines of the tables
    console.print(LEGEND)
    for table in tables(found):
        console.print(table)
    for path in paths:
        console.print(f"written to {path}", soft_wrap=True)


if __name__ == "__main__":
    main()
