"""Tests of hypergradients: closed forms on a quadratic problem, rates, steps of Adam by hand, and the limit of exact
BiSM."""

from contextlib import nullcontext

import pytest
import torch

import eblvm_lit as eb
from cases import HYPERGRADIENTS, INFERRED, OBJECTIVES, POSTERIORS, V_DIM
from eblvm_lit.core.functional import bind, params_of, plain_autograd
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.core.tensors import clip
from eblvm_lit.hypergradients.implicit import Implicit, conjugate_gradient
from eblvm_lit.runs.instantiate import instantiate
from helpers.quadratic import ALPHA, Quadratic, flat

pytestmark = pytest.mark.usefixtures("float64")
every_hypergradient = pytest.mark.parametrize("case", HYPERGRADIENTS, ids=str)


@every_hypergradient
@pytest.mark.parametrize("backend", [nullcontext, plain_autograd])
def test_closed_form_on_a_quadratic(case, backend):
    toy = Quadratic()
    hypergradient = case.make(ALPHA)
    with backend():
        value, grads, _ = hypergradient(toy.problem(), toy.theta, toy.phi, hypergradient.init_state(toy.phi))
    expected_value, expected = toy.gradient(case.n_steps, case.inverse(toy.H, ALPHA))
    torch.testing.assert_close(value, expected_value)
    torch.testing.assert_close(flat(grads), expected, rtol=1e-9, atol=1e-9)
    assert {name: g.shape for name, g in grads.items()} == {name: p.shape for name, p in toy.theta.items()}
    assert not any(g.requires_grad for g in (*grads.values(), value))
    # the hypergradient uses each of its n_draws samples of noise, and no others
    assert {*toy.draws} == {*range(hypergradient.n_draws)}


@every_hypergradient
def test_a_hypergradient_changes_no_current_state(case):
    toy = Quadratic()
    adam = eb.Adam(lr=0.1)
    state = adam.update(toy.phi, toy.phi, adam.init(toy.phi), 0.1)[1]
    live = [*toy.theta.values(), *toy.phi.values(), state["step"]]
    live += [x for slot in adam.slots for x in state[slot].values()]
    hypergradient = case.make(ALPHA)
    kept = hypergradient.init_state(toy.phi)
    live += kept.values()
    before = [x.clone() for x in live]
    versions = [x._version for x in live]
    hypergradient(toy.problem(adam, state), toy.theta, toy.phi, kept)
    assert all(torch.equal(x, y) for x, y in zip(live, before, strict=True))
    assert versions == [x._version for x in live]
    assert not any(x.requires_grad for x in live)


def test_neumann_at_the_lower_optimum_is_unrolling():
    toy = Quadratic(shift=0.0)
    exact = toy.B @ flat(toy.theta)
    toy.phi = {"x": exact[:2], "y": exact[2:].view(3, 1)}
    for n in (0, 1, 2, 5):
        series = Implicit(n_terms=n, solver="neumann", step_size=ALPHA)(toy.problem(), toy.theta, toy.phi)
        unrolled = eb.Unroll(n_unroll=n, descent="plain", step_size=ALPHA)(toy.problem(), toy.theta, toy.phi)
        torch.testing.assert_close(flat(series[1]), flat(unrolled[1]))


def unrolled_adam(toy, theta, state, n, lr=0.1, beta1=0.9, beta2=0.95, eps=1e-8, decay=0.1):
    """Return J after n steps of Adam on the lower loss, with Adam's equations written out."""
    phi = {name: p.clone().requires_grad_() for name, p in toy.phi.items()}
    t = state["step"].item()
    m = dict(state["exp_avg"])
    s = dict(state["exp_avg_sq"])
    for i in range(n):
        grads = torch.autograd.grad(toy.lower(theta, phi, i), list(phi.values()), create_graph=True)
        t += 1
        for name, g in zip(list(phi), grads, strict=True):
            g = g + decay * phi[name]
            m[name] = beta1 * m[name] + (1 - beta1) * g
            s[name] = beta2 * s[name] + (1 - beta2) * g**2
            step = (m[name] / (1 - beta1**t)) / ((s[name] / (1 - beta2**t)).sqrt() + eps)
            phi[name] = phi[name] - lr * step
    return toy.upper(theta, phi)


@pytest.mark.parametrize("backend", [nullcontext, plain_autograd])
@pytest.mark.parametrize("n", [1, 3])
def test_unrolled_adam_continues_from_the_current_moments(n, backend):
    toy = Quadratic(quartic=0.3)
    adam = eb.Adam(lr=99.0, weight_decay=0.1)
    state = adam.init(toy.phi)
    for i in range(3):  # After these steps, Adam's moments are no longer the initial zeros.
        grads = torch.func.grad(toy.lower, argnums=1)(toy.theta, toy.phi, 10 + i)
        toy.phi, state = adam.update(toy.phi, grads, state, 0.1)
    with backend():
        value, grads, _ = eb.Unroll(n_unroll=n)(toy.problem(adam, state, 0.1), toy.theta, toy.phi)
    theta = {name: p.clone().requires_grad_() for name, p in toy.theta.items()}
    expected = unrolled_adam(toy, theta, state, n)
    torch.testing.assert_close(value, expected.detach())
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(expected, list(theta.values()))])
    torch.testing.assert_close(flat(grads), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("backend", [nullcontext, plain_autograd])
def test_unrolled_steps_are_clipped_like_the_lower_levels(backend):
    toy = Quadratic(quartic=0.3)
    n = 3

    def taken(theta, clip_norm):
        phi = {name: p.clone().requires_grad_() for name, p in toy.phi.items()}
        scales = []
        for i in range(n):
            grads = torch.autograd.grad(toy.lower(theta, phi, i), list(phi.values()), create_graph=True)
            norm = torch.cat([g.flatten() for g in grads]).norm()
            scales.append((clip_norm / (norm + 1e-6)).clamp(max=1))
            phi = {name: p - ALPHA * scales[-1] * g for (name, p), g in zip(phi.items(), grads, strict=True)}
        return toy.upper(theta, phi), scales

    theta = {name: p.clone().requires_grad_() for name, p in toy.theta.items()}
    _, free = taken(theta, 1e9)
    assert free == [1] * n
    expected, scales = taken(theta, 1.5)
    assert min(scales) < 0.9
    with backend():
        value, grads, _ = eb.Unroll(n_unroll=n)(toy.problem(eb.SGD(lr=99.0, clip_norm=1.5)), toy.theta, toy.phi)
    torch.testing.assert_close(value, expected.detach())
    exact = torch.cat([g.flatten() for g in torch.autograd.grad(expected, list(theta.values()))])
    torch.testing.assert_close(flat(grads), exact, rtol=1e-9, atol=1e-9)


def test_a_gradient_of_zero_is_clipped_with_a_finite_derivative():
    x = torch.zeros(3, requires_grad=True)
    (slope,) = torch.autograd.grad(clip({"x": x}, 1.0)["x"].sum(), x)
    assert torch.equal(slope, torch.ones(3))


def test_conjugate_gradient_stops_at_negative_curvature():
    H = torch.diag(torch.tensor([1.0, 2.0, -0.5]))
    solve = lambda b, n: conjugate_gradient(lambda x: {"x": H @ x["x"]}, {"x": torch.tensor(b)}, n)["x"]  # noqa: E731
    torch.testing.assert_close(solve([1.0, 2.0, 0.0], 5), torch.tensor([1.0, 1.0, 0.0]))
    assert torch.equal(solve([0.0, 0.0, 1.0], 5), torch.zeros(3))
    assert torch.equal(solve([0.0, 0.0, 0.0], 5), torch.zeros(3))
    assert torch.equal(solve([1.0, 1.0, 1.0], 9), solve([1.0, 1.0, 1.0], 3))


def bilevel_problem(energy_case, objective):
    """Return a BiSM problem with a closed-form lower loss, theta, the optimal phi, and the exact marginal's
    gradient."""
    energy = energy_case.make()
    q = energy_case.exact_posterior(energy)
    v = torch.randn(8, V_DIM)
    distribution = POSTERIORS[2 if q.continuous else 0].distribution
    noise = objective.noise(v, (), keyed_generator(0))
    latent = q.noise((), v, keyed_generator(1))
    points = objective.perturb(v, noise)

    def lower(theta, phi, i):
        p = energy_case.conditional(bind(energy, theta), points)
        return torch.distributions.kl_divergence(distribution(bind(q, phi), points), p).mean()

    def upper(theta, phi):
        score = eb.BilevelScore(bind(energy, theta), bind(q, phi), points, latent)
        return objective.loss(score, points, noise).mean()

    theta = params_of(energy)
    phi = params_of(q)
    exact = torch.func.grad(lambda t: objective.loss(eb.ExactScore(bind(energy, t)), points, noise).mean())(theta)
    return eb.BilevelProblem(upper, lower, None, {}, None), theta, phi, flat(exact)


@pytest.mark.parametrize("energy_case", INFERRED, ids=str)
@pytest.mark.parametrize("case", [OBJECTIVES[0], OBJECTIVES[5]], ids=str)
def test_bism_at_the_exact_posterior_is_exact_only_through_phi(case, energy_case):
    problem, theta, phi, exact = bilevel_problem(energy_case, case.make())
    value, implicit, _ = Implicit(n_terms=25)(problem, theta, phi)
    torch.testing.assert_close(flat(implicit), exact, rtol=1e-6, atol=1e-7)
    direct_value, direct, _ = eb.Unroll(n_unroll=0)(problem, theta, phi)
    assert torch.equal(value, direct_value)
    assert torch.linalg.vector_norm(flat(direct) - exact) > 0.05 * torch.linalg.vector_norm(exact)


def built(name, **options):
    return instantiate({"_target_": f"eblvm_lit.hypergradients.{name}", **options}, "hypergradient")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: built("unroll.Unroll", n_unroll=-1),
            r"n_unroll \(Unroll\) must be greater than or equal to 0, not -1",
        ),
        (lambda: eb.Unroll(n_unroll=1, step_size=0.1), "plain"),
        (lambda: built("implicit.Implicit", solver="other"), "'cg' or 'neumann', not 'other'"),
    ],
)
def test_unfit_hypergradients_are_refused(make, words):
    with pytest.raises(eb.ConfigError, match=words):
        make()
