"""Tests of hypergradients that keep a state between iterations, and of the rates at which they converge.

They are the warm-started adjoint, finite differences and the penalty.
"""

import itertools

import pytest
import torch

import eblvm_lit as eb
from cases import ENERGIES, POSTERIORS
from eblvm_lit.hypergradients.finite_difference import AdamAdjoint, FiniteDifference, difference_product
from eblvm_lit.hypergradients.implicit import Implicit, mixed_product
from helpers.quadratic import ALPHA, EIGENVALUES, Quadratic, flat

pytestmark = pytest.mark.usefixtures("float64")


def size(vector):
    return torch.linalg.vector_norm(vector)


def run(hypergradient, toy, n, problem=None):
    """Return the hypergradients that n iterations estimate while theta and phi stay fixed."""
    problem = problem or toy.problem()
    state = hypergradient.init_state(toy.phi)
    found = []
    for _ in range(n):
        _, gradient, state = hypergradient(problem, toy.theta, toy.phi, state)
        found.append(flat(gradient))
    return found


def test_a_warm_adjoint_converges_to_the_implicit_one_at_the_rate_of_its_descent():
    toy = Quadratic()
    limit = flat(Implicit(n_terms=5)(toy.problem(), toy.theta, toy.phi).gradient)
    warm = eb.Warm(n_steps=2, step_size=ALPHA, curvature="hessian", preconditioner="none")
    errors = [size(found - limit) for found in run(warm, toy, 40)]
    rate = 1 - ALPHA * min(EIGENVALUES)
    torch.testing.assert_close(errors[-1] / errors[-2], torch.tensor(rate**2), rtol=1e-3, atol=0)
    assert errors[-1] < 1e-3 * errors[0]


def test_preconditioned_steps_converge_at_the_rate_of_the_preconditioned_hessian():
    toy = Quadratic()
    adam = eb.Adam(lr=0.1)
    state = adam.init(toy.phi)
    state["step"] += 3
    for name, p in toy.phi.items():
        state["exp_avg_sq"][name] = torch.rand_like(p) + 0.1
    problem = toy.problem(adam, state)
    root = flat(adam.root(state))
    torch.testing.assert_close(root, (flat(state["exp_avg_sq"]) / (1 - 0.95**3)).sqrt() + 1e-8)
    limit = flat(Implicit(n_terms=5)(problem, toy.theta, toy.phi).gradient)
    errors = [size(found - limit) for found in run(eb.Warm(step_size=0.2, curvature="hessian"), toy, 150, problem)]
    scaled = toy.H / (root.sqrt().unsqueeze(1) * root.sqrt())
    rate = (1 - 0.2 * torch.linalg.eigvalsh(scaled)).abs().max()
    torch.testing.assert_close(errors[-1] / errors[-2], rate, rtol=1e-3, atol=0)
    # Five preconditioned steps of conjugate gradients solve a system of five unknowns exactly.
    torch.testing.assert_close(run(eb.Warm(n_steps=5, curvature="hessian"), toy, 1, problem)[0], limit)


def test_warm_conjugate_gradient_goes_on_where_it_stopped():
    toy = Quadratic()
    limit = flat(Implicit(n_terms=5)(toy.problem(), toy.theta, toy.phi).gradient)
    warm = eb.Warm(curvature="hessian", preconditioner="none")
    errors = [size(found - limit) for found in run(warm, toy, 40)]
    # With one step of conjugate gradients in each iteration, the method is steepest descent with exact line search. Its
    # error falls at least as fast as with the best fixed step size.
    low = min(EIGENVALUES)
    high = max(EIGENVALUES)
    assert errors[-1] / errors[0] < ((high - low) / (high + low)) ** 36


def test_a_warm_adjoint_is_reset_at_the_given_interval():
    toy = Quadratic()
    plain = eb.Warm(step_size=ALPHA, curvature="hessian", preconditioner="none")
    reset = eb.Warm(step_size=ALPHA, curvature="hessian", preconditioner="none", reset_every=3)
    straight = run(plain, toy, 7)
    found = run(reset, toy, 7)
    for i, gradient in enumerate(found):
        assert torch.equal(gradient, straight[i % 3])
    assert not torch.equal(straight[3], straight[0])


def test_the_difference_is_of_second_order_in_its_step():
    toy = Quadratic(quartic=0.3)
    w = {name: torch.randn_like(p) for name, p in toy.phi.items()}
    exact = flat(mixed_product(toy.problem(), toy.theta, toy.phi, w))
    errors = []
    for radius in (0.4, 0.2, 0.1, 0.05):
        errors.append(size(flat(difference_product(toy.problem(), toy.theta, toy.phi, w, radius)) - exact))
    # G is a polynomial of degree four, so that the central difference only has an error of second order: half the
    # radius gives a quarter of the error.
    for before, after in itertools.pairwise(errors):
        torch.testing.assert_close(before / after, torch.tensor(4.0), rtol=1e-6, atol=0)


def test_the_difference_does_not_depend_on_the_length_of_w_and_survives_zero():
    toy = Quadratic()
    w = {name: torch.randn_like(p) for name, p in toy.phi.items()}
    for scale in (1e-6, 1.0, 1e6):
        scaled = {name: scale * x for name, x in w.items()}
        found = flat(difference_product(toy.problem(), toy.theta, toy.phi, scaled, 0.01)) / scale
        exact = flat(mixed_product(toy.problem(), toy.theta, toy.phi, w))
        torch.testing.assert_close(found, exact, rtol=1e-9, atol=1e-9)
    zero = {name: torch.zeros_like(x) for name, x in w.items()}
    assert torch.equal(flat(difference_product(toy.problem(), toy.theta, toy.phi, zero, 0.01)), torch.zeros(4))


def test_adams_diagonal_stands_for_the_hessian():
    toy = Quadratic()
    adam = eb.Adam(lr=0.1)
    state = adam.update(toy.phi, toy.phi, adam.init(toy.phi), 0.1)[1]
    problem = toy.problem(adam, state)
    outer = toy.Q @ (flat(toy.phi) - toy.r) + toy.R @ flat(toy.theta)
    w = -0.7 * outer / flat(adam.root(state))
    direct = flat(eb.Unroll(n_unroll=0)(toy.problem(), toy.theta, toy.phi).gradient)
    expected = direct - toy.B.T @ toy.H @ w
    found = AdamAdjoint(scale=0.7)(problem, toy.theta, toy.phi).gradient
    torch.testing.assert_close(flat(found), expected)
    found = FiniteDifference(adjoint=AdamAdjoint(scale=0.7))(problem, toy.theta, toy.phi).gradient
    torch.testing.assert_close(flat(found), expected, rtol=1e-9, atol=1e-9)


def test_the_penalty_approaches_the_implicit_gradient_as_one_over_its_multiplier():
    toy = Quadratic(shift=0.0)
    # The current phi minimises the lower loss. The penalty's z starts there, and therefore stays at the optimum.
    exact = toy.B @ flat(toy.theta)
    toy.phi = {"x": exact[:2], "y": exact[2:].view(3, 1)}
    limit = flat(Implicit(n_terms=5)(toy.problem(), toy.theta, toy.phi).gradient)
    errors = []
    for multiplier in (100.0, 200.0, 400.0):
        penalty = eb.Penalty(n_steps=120, multiplier=multiplier, growth=0.0, step_size=ALPHA, preconditioner="none")
        toy.shift = torch.zeros(400, 5)
        errors.append(size(run(penalty, toy, 1)[0] - limit))
    for before, after in itertools.pairwise(errors):
        torch.testing.assert_close(before / after, torch.tensor(2.0), rtol=0.1, atol=0)
    assert errors[-1] < 0.1 * size(limit)


def test_the_distance_of_the_penalised_posterior_is_kept_and_the_multiplier_grows():
    toy = Quadratic()
    penalty = eb.Penalty(
        n_steps=2, multiplier=3.0, growth=0.5, max_multiplier=3.7, step_size=0.1, preconditioner="none"
    )
    state = penalty.init_state(toy.phi)
    shift = torch.zeros(5)
    phi = flat(toy.phi)
    assert torch.equal(state["penalty_shift"], shift)
    for multiplier in (3.0, 3.5, 3.7, 3.7):
        torch.testing.assert_close(state["penalty_multiplier"], torch.tensor(multiplier))
        value, gradient, state = penalty(toy.problem(), toy.theta, toy.phi, state)
        y = phi + shift
        z = phi
        for i in range(2):
            centre = toy.B @ flat(toy.theta) + toy.shift[i]
            outer = toy.Q @ (y - toy.r) + toy.R @ flat(toy.theta)
            y = y - 0.1 * (toy.H @ (y - centre) + outer / multiplier)
            z = z - 0.1 * toy.H @ (z - centre)
        shift = y - z
        torch.testing.assert_close(state["penalty_shift"], shift)
        torch.testing.assert_close(value, toy.upper(toy.theta, {"": y}))
        # The penalty subtracts the gradient d_theta G = -B'H (phi - B theta) at phi = z from the gradient at phi = y.
        direct = toy.P @ flat(toy.theta) + toy.R.T @ y
        torch.testing.assert_close(flat(gradient), direct - multiplier * toy.B.T @ toy.H @ (y - z))


def test_the_multiplier_does_not_multiply_the_noise_of_the_lower_level():
    quiet = Quadratic(shift=0.0)
    noisy = Quadratic(shift=0.0)
    options = {"growth": 0.0, "preconditioner": "none"}
    for name in ("H", "B", "R", "r", "Q", "P", "theta", "phi"):
        setattr(noisy, name, getattr(quiet, name))
    noisy.shift = torch.randn(50, 5).expand(50, 5)
    penalty = eb.Penalty(n_steps=1, multiplier=1e6, step_size=ALPHA, **options)
    for a, b in zip(run(penalty, quiet, 30), run(penalty, noisy, 30), strict=True):
        # If y and z had different noise, the multiplier would make the gradients a and b differ a million times more.
        assert size(a - b) < size(a)


@pytest.mark.parametrize("make", [eb.Warm, AdamAdjoint, eb.Penalty, lambda: FiniteDifference(adjoint=AdamAdjoint())])
def test_adams_diagonal_needs_adam(make):
    lower = eb.LowerLevel(ENERGIES[0].make(), POSTERIORS[0].make(), eb.KL(), eb.SGD(lr=0.1))
    with pytest.raises(eb.ConfigError, match="SGD has none"):
        make().check(lower)
    make().check(lower._replace(optimizer=eb.Adam(lr=0.1)))
