"""Tests of the quadratic problems: their closed forms, and each hypergradient's rate compared with theory."""

import json
import sys

import pytest
import torch
from benchmarks.bilevel_quadratic import BIASES, KAPPAS, order, rate, sweep
from benchmarks.quadratic_estimators import ESTIMATORS, OUTER
from benchmarks.quadratics import Quadratic

from benchmarks import bilevel_quadratic
from eblvm_lit.core.functional import plain_autograd

every_kappa = pytest.mark.parametrize("kappa", [KAPPAS[0], KAPPAS[-1]])
DESCENTS = ("unroll", "implicit, Neumann", "warm, descent")


@pytest.fixture(autouse=True)
def plainly():
    with plain_autograd():
        yield


def estimate(hypergradient, toy, n=1, distance=0.0):
    """Return a hypergradient's estimate after n iterations on a quadratic problem."""
    phi = {"phi": toy.optimum(distance)}
    state = hypergradient.init_state(phi)
    for _ in range(n):
        _, gradient, state = hypergradient(toy.problem(), {"theta": toy.theta}, phi, state)
    return gradient["theta"]


@every_kappa
@pytest.mark.parametrize("quartic", [0.0, 1.0])
def test_closed_forms_of_the_problem(kappa, quartic):
    toy = Quadratic(kappa, quartic=quartic)
    torch.testing.assert_close(torch.linalg.cond(toy.H), torch.tensor(float(kappa)).double(), rtol=1e-9, atol=0)
    slope = torch.func.grad(toy.lower, argnums=1)({"theta": toy.theta}, {"phi": toy.optimum()}, 0)["phi"]
    assert slope.abs().max() < 1e-13

    def composed(theta):
        # compute the lower optimum phi*(theta) by a dense solver
        phi = torch.linalg.solve(toy.H, toy.B @ theta)
        return toy.upper({"theta": theta}, {"phi": phi})

    # A dense solver loses as many digits as the condition number has, so that the tolerance is proportional to kappa.
    exact = {"rtol": 1e-14 * 100 * kappa, "atol": 1e-14 * 100 * kappa}
    torch.testing.assert_close(torch.func.grad(composed)(toy.theta), toy.hypergradient(), **exact)
    assert torch.func.grad(composed)(toy.solution()).abs().max() < 1e-14 * 100 * kappa


@every_kappa
def test_the_closed_form_of_the_penalty(kappa):
    toy = Quadratic(kappa)
    multiplier = 30.0
    distance = 0.01
    shift, gradient = toy.penalised(multiplier, distance)
    theta = {"theta": toy.theta}
    phi = {"phi": toy.optimum(distance)}
    slope = torch.func.grad(toy.lower, argnums=1)
    z = phi["phi"] - slope(theta, phi, 0)["phi"]

    def penalised(theta, y):
        return toy.upper(theta, y) + multiplier * (toy.lower(theta, y, 0) - toy.lower(theta, {"phi": z}, 0))

    # The tolerance allows for rounding errors of G, which the multiplier lambda amplifies.
    found = torch.func.grad(penalised)(theta, {"phi": z + shift})["theta"]
    torch.testing.assert_close(found, gradient, rtol=0, atol=1e-12)
    # Start y at the distance y - z from phi, and z at phi. There the slope of G + J / lambda for y equals the slope of
    # G for z. So one step moves both by the same vector, and y - z is stationary.
    start = {"phi": phi["phi"] + shift}
    difference = torch.func.grad(penalised, argnums=1)(theta, start)["phi"] - multiplier * slope(theta, phi, 0)["phi"]
    assert difference.abs().max() < 1e-12


@every_kappa
@pytest.mark.parametrize("n", [1, 6, 60])
def test_descents_and_the_series_have_the_error_of_the_remaining_modes(kappa, n):
    toy = Quadratic(kappa)
    left = toy.A.T @ toy.of_hessian(lambda eigenvalues: (1 - eigenvalues) ** n) @ toy.outer(toy.optimum())
    for name in DESCENTS:
        made = ESTIMATORS[name]
        found = estimate(made.make(kappa, n), toy, n if made.carried else 1)
        torch.testing.assert_close(found, toy.hypergradient() - left, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", [*DESCENTS, "penalty"])
def test_the_rate_of_descent(name):
    kappa = 10
    rows = sweep(ESTIMATORS[name], 10, 500)
    n = [row["steps"] for row in rows if row["to_limit"] > bilevel_quadratic.RESOLVED][-1]
    # The error is a sum over the eigenvectors of the Hessian, and n steps multiply each term by (1 - eigenvalue)^n. The
    # initial terms are larger for smaller eigenvalues. Even with equal initial terms, the weighted mean of the
    # eigenvalues after n steps is within 1 / 2n of the smallest one. With random terms it is within 1 / n, and its mean
    # over the later half of the steps is within 2 / n.
    assert 1 / kappa < 1 - rate(rows) < 1 / kappa + 2 / n


@pytest.mark.parametrize("name", ESTIMATORS)
def test_evaluations_are_counted(name):
    rows = sweep(ESTIMATORS[name], 10, 40)
    costs = {
        "unroll": lambda n: 2 * n,  # each step has one gradient, and one product with the Hessian in the backward pass
        "implicit, Neumann": lambda n: n,  # n - 1 products with the Hessian, and one mixed product
        "implicit, CG": lambda n: n + 1,
        "warm, descent": lambda n: 2 * n,
        "warm, CG": lambda n: 3 * n,  # the residual at the start of a step costs an evaluation, too
        "finite difference, CG": lambda n: n + 2,
        "penalty": lambda n: 4 * n,  # G is evaluated for the steps of y and z, and for the gradients at y and z
    }
    assert [row["evaluations"] for row in rows] == [costs[name](row["steps"]) for row in rows]
    assert len(rows) > 2


@pytest.mark.parametrize("name", BIASES)
def test_the_orders_of_biases(name):
    rows, power, ends = BIASES[name]
    # Because G has degree four and J has degree two, each error has only one order. The penalty has a further term,
    # which is smaller by a factor kappa / lambda.
    assert order(rows(100), ends(100)) == pytest.approx(power, abs=1e-3)


@pytest.mark.slow
def test_the_command(tmp_path, monkeypatch, capsys, unrendered):
    for name, value in (("KAPPAS", (10, 30)), ("SMALL_KAPPAS", (10,)), ("enough", lambda _: 10)):
        monkeypatch.setattr(bilevel_quadratic, name, value)
    monkeypatch.setattr(sys, "argv", ["bilevel_quadratic", "--budget", "40", "--out", str(tmp_path)])
    bilevel_quadratic.main()
    printed = capsys.readouterr().out
    found = json.loads((tmp_path / "bilevel_quadratic.json").read_text())
    assert [*found["errors"]["30"]] == [*ESTIMATORS]
    for name in (*ESTIMATORS, *BIASES, *OUTER):
        assert any(line.startswith(f"| {name} ") for line in printed.splitlines()), name
    assert {path.stem for path in tmp_path.glob("*.png")} == {"bilevel_quadratic", "bilevel_quadratic_outer"}
