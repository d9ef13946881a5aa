"""Tests that both backends of gradients agree, for nested functions and for iterations of a small model."""

import pytest
import torch
from torch.utils import _pytree as pytree

from cases import ENERGIES, POSTERIORS, V_DIM
from eblvm_lit.core.functional import divergence, grad, grad_and_value, plain_autograd, vjp
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.core.tensors import tree_map
from eblvm_lit.divergences.fisher import Fisher
from eblvm_lit.divergences.kl import KL
from eblvm_lit.hypergradients.finite_difference import AdamAdjoint, FiniteDifference
from eblvm_lit.hypergradients.fixed_point import FixedPoint
from eblvm_lit.hypergradients.implicit import Implicit
from eblvm_lit.hypergradients.penalty import Penalty
from eblvm_lit.hypergradients.unroll import Unroll
from eblvm_lit.hypergradients.warm import Warm
from eblvm_lit.methods.bism import BiSM
from eblvm_lit.objectives.dsm import DSM
from eblvm_lit.objectives.mdsm import MDSM
from eblvm_lit.objectives.sm import SM
from eblvm_lit.objectives.ssm import SSM
from eblvm_lit.optimizers.adam import Adam
from helpers.iterating import start as starting_state
from tolerances import assert_same_iterations, bounded, operations, reordered

pytestmark = pytest.mark.usefixtures("float64")
X = torch.tensor([1.0, 2.0], dtype=torch.float64)
Y = torch.tensor([3.0, 5.0], dtype=torch.float64)


def inner_times_outer(x):
    """Compute the sum of x * d/db (b^2 x + x^3) at b = x, which is the sum of 2 x^3.

    In the inner derivative, x is a constant of the outer function.
    """
    return (grad(lambda b: (b**2 * x + x**3).sum())(x) * x).sum()


def gradient_penalty(params):
    def energy(x):
        return ((x @ params["W"]).tanh() * params["c"]).sum()

    slope, (value, aux) = grad_and_value(lambda x: (energy(x), {"doubled": 2 * energy(x)}), has_aux=True)(Y)
    return slope.square().sum() + value * aux["doubled"]


# Each entry is an expression with derivatives, and its expected value, or None if the value is not known.
EXPRESSIONS = {
    "third": (lambda: grad(lambda x: grad(lambda y: grad(lambda z: z**4)(y))(x))(Y[0]), 24 * Y[0]),
    "closure": (lambda: grad(inner_times_outer)(X), 6 * X**2),
    "one-tensor-twice": (lambda: grad(lambda a, b: (a**2 * b).sum(), argnums=(0, 1))(X, X), (2 * X**2, X**2)),
    "unused": (
        lambda: grad_and_value(lambda p: p["a"].sum())({"a": X, "b": Y}),
        ({"a": torch.ones_like(X), "b": torch.zeros_like(Y)}, X.sum()),
    ),
    "unused-outside": (lambda: grad(lambda x: grad(lambda y: (y**2).sum())(Y).sum())(X), torch.zeros_like(X)),
    "where-gradients-are-switched-off": (lambda: torch.no_grad()(grad(lambda x: (x**3).sum()))(X), 3 * X**2),
    "constant-inside": (
        lambda: grad(lambda x: (torch.no_grad()(grad(lambda y: (y**3).sum()))(x) * x).sum())(X),
        3 * X**2,
    ),
    "value-that-is-constant-inside": (
        lambda: grad(lambda x: (torch.no_grad()(grad_and_value(lambda y: (y**3).sum()))(x)[1] * x).sum())(X),
        (X**3).sum().expand(2),
    ),
    "vjp-where-gradients-are-switched-off": (
        lambda: torch.no_grad()(lambda: vjp(lambda y: (y**3, {}), X)[1](torch.ones_like(X)))(),
        3 * X**2,
    ),
    "both": (lambda: grad_and_value(lambda x: ((x**2).sum(), 3 * x), has_aux=True)(X), (2 * X, ((X**2).sum(), 3 * X))),
    "around-and-inside": (
        lambda: grad(lambda x: torch.func.jvp(grad(lambda y: (y**4).sum()), (x,), (Y,))[1].sum())(X),
        24 * X * Y,
    ),
    "vjp-inside-vmap": (
        lambda: torch.func.vmap(lambda x: vjp(lambda y: (y**3, {}), x)[1](torch.ones_like(x)))(X),
        3 * X**2,
    ),
    "penalty": (lambda: grad(gradient_penalty)({"W": torch.outer(X, Y), "c": X / 7}), None),
    "divergence": (lambda: divergence(lambda v: v**2 * v.sum(-1, keepdim=True), X[None]), torch.tensor([23.0])),
    "divergence-of-a-gradient": (
        lambda: grad(lambda a: divergence(lambda v: grad(lambda w: (w**3 * a).sum())(v), X[None]).sum())(Y),
        6 * X,
    ),
}


def close(a, b, **tolerance):
    a = pytree.tree_flatten(a)
    b = pytree.tree_flatten(b)
    assert a[1] == b[1]
    for x, y in zip(a[0], b[0], strict=True):
        torch.testing.assert_close(x, y, **tolerance)


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_backends_agree(name):
    compute, expected = EXPRESSIONS[name]
    functional = compute()
    with plain_autograd():
        plain = compute()
    close(plain, functional, rtol=1e-13, atol=1e-13)
    if expected is not None:
        close(functional, expected if name != "divergence" else expected.to(X), rtol=1e-13, atol=1e-13)
    attached = []
    tree_map(lambda x: attached.append(x.requires_grad), plain)
    assert not any(attached)


def test_plain_autograd_leaves_no_trace():
    x = X.clone()
    with torch.no_grad(), plain_autograd():
        assert torch.equal(grad(lambda y: (y**2).sum())(x), 2 * X)
        with pytest.raises(ZeroDivisionError):
            grad(lambda y: (y * (1 / 0)).sum())(x)
        # after the error, this call is the outermost one again
        assert torch.equal(grad(lambda y: (y**2).sum())(x), 2 * X)
    assert not x.requires_grad
    assert x.grad is None
    hessian = torch.func.vmap(lambda e: torch.func.jvp(grad(lambda y: (y**3).sum()), (x,), (e,))[1])(torch.eye(2).to(x))
    # outside of plain_autograd, torch.func works again and can be nested
    assert torch.equal(hessian, torch.diag(6 * X))


def test_divergence_of_an_image_field():
    A = torch.randn(6, 6)
    v = torch.randn(4, 1, 2, 3)
    field = lambda x: (x.flatten(1) @ A).tanh().view_as(x)  # noqa: E731
    jacobian = torch.func.vmap(torch.func.jacrev(lambda x: (x @ A).tanh()))(v.flatten(1))
    torch.testing.assert_close(divergence(field, v), jacobian.diagonal(dim1=1, dim2=2).sum(-1))


OBJECTIVES = {
    "sm": lambda: SM(),
    "ssm": lambda: SSM(),
    "dsm": lambda: DSM(noise_std=0.3),
    "mdsm": lambda: MDSM(sigma_min=0.2, sigma_max=0.5, sigma0=0.3),
}
HYPERGRADIENTS = {
    "direct": lambda: Unroll(n_unroll=0),
    "unroll": lambda: Unroll(n_unroll=2),
    "plain": lambda: Unroll(n_unroll=2, descent="plain", step_size=0.01),
    "cg": lambda: Implicit(n_terms=3),
    "neumann": lambda: Implicit(n_terms=3, solver="neumann", step_size=0.1),
    "fixed-point": lambda: FixedPoint(n_steps=2, n_particles=2, step_size=0.5),
    "fixed-point-phi": lambda: FixedPoint(n_steps=2, value="phi", step_size=0.5),
    "fixed-point-stepped": lambda: FixedPoint(n_steps=2, n_particles=2, step_size=0.5, precision="stepped"),
    "warm-cg": lambda: Warm(curvature="hessian", damping=1.0),
    "warm-descent": lambda: Warm(n_steps=2, step_size=0.01, curvature="hessian", preconditioner="none"),
    "finite-difference": lambda: FiniteDifference(adjoint=AdamAdjoint(scale=0.1)),
    "penalty": lambda: Penalty(n_steps=2, multiplier=100.0, step_size=0.001),
}


def named(end):
    """Return the parameters and buffers of a state by their names in the method."""
    prefixes = {"theta": "energy", "phi": "posterior"}
    params = {f"{prefixes[n]}.{key}": p for n, params in end["params"].items() for key, p in params.items()}
    return params | end["buffers"]


@pytest.mark.parametrize(
    ("objective", "hypergradient", "model"),
    [
        *(("sm", name, "gaussian") for name in HYPERGRADIENTS),
        *(("dsm", name, "grbm") for name in ("unroll", "cg", "fixed-point", "warm-descent")),
        *((name, "unroll", "grbm") for name in ("ssm", "mdsm")),
    ],
)
def test_backends_agree_over_iterations(objective, hypergradient, model):
    energy_case, posterior_case, rule = (
        (ENERGIES[0], POSTERIORS[0], KL()) if model == "grbm" else (ENERGIES[-1], POSTERIORS[3], Fisher())
    )
    energy = energy_case.make()
    q = posterior_case.make()
    v = torch.randn(6, V_DIM)
    method = BiSM(
        energy=energy,
        posterior=q,
        objective=OBJECTIVES[objective](),
        divergence=rule,
        hypergradient=HYPERGRADIENTS[hypergradient](),
        optimizer=Adam(lr=0.05, clip_norm=0.5),
        n_lower_steps=2,
    )
    start = starting_state(method)

    def run():
        state = start
        records = []
        for iteration in range(2):
            state = method.iteration(state, v, method.draw_noise(v, keyed_generator(0, "noise", iteration)))
            records.append(state.record())
        found = {"params": state.params, "optimizers": state.optimizers, "buffers": state.buffers}
        return {**found, "records": records}

    with bounded(method, reordered(operations(method, v, 2))) as bounds:
        functional = run()
    with plain_autograd():
        plain = run()
    assert_same_iterations(*((named(end), end["records"]) for end in (plain, functional)), bounds)
    close(plain["optimizers"], functional["optimizers"], rtol=0, atol=bounds.moments)
    attached = []
    tree_map(lambda x: attached.append(x.requires_grad), plain)
    assert not any(attached)
    end = functional["params"]
    begin = start.params
    change = {name: (end[network][name] - p).abs().max() for network in begin for name, p in begin[network].items()}
    # The surrogate score does not depend on c, so that c gets a gradient only through phi. With CG, it does so only if
    # the curvature is positive.
    through_phi = change.pop("c")
    assert through_phi == 0 if hypergradient == "direct" else through_phi > 1e-3 or hypergradient == "cg"
    assert min(change.values()) > 1e-3
    for name, kept in functional["buffers"].items():
        assert not torch.equal(kept, start.buffers[name]), name
