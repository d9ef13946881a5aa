r"""Bounds on how far two orders of the same arithmetic may differ, from the number of operations and the dtype.

Instruction sets, threads, compilers and numbers of processes change the order of sums, and which products are fused
into them, but not what is summed. The bounds here allow any order. A mutation (a changed term, factor, sign or order of
steps) exceeds them by many powers of ten, which tests/test_tolerances.py checks.
"""

import functools
from contextlib import contextmanager
from unittest import mock

import torch

from eblvm_lit.core.functional import grad
from eblvm_lit.core.tensors import norm, tree_map, unflatten
from eblvm_lit.hypergradients.finite_difference import FiniteDifference
from eblvm_lit.hypergradients.penalty import Penalty
from eblvm_lit.methods.base import Method
from eblvm_lit.optimizers.adam import Adam
from helpers.iterating import updating

__all__ = ["Bounds", "adam_step", "assert_same_iterations", "bounded", "gamma", "operations", "reordered"]


def gamma(n, dtype=torch.float64):
    r"""Compute the largest relative error of a chain of n operations, :math:`\gamma_n = n u / (1 - n u)`.

    Each operation multiplies its result by one :math:`1 + \delta_i, |\delta_i| \le u = \epsilon / 2`, and
    :math:`|\prod_{i \le n} (1 + \delta_i)^{\pm 1} - 1| \le \gamma_n`. For a sum of n terms the bound is relative to the
    sum of their absolute values, and holds for every order, with or without fused products.

    Reference: Higham 2002, Accuracy and Stability of Numerical Algorithms, Lemma 3.1 and Section 4.2.
    """
    u = torch.finfo(dtype).eps / 2
    assert n * u < 0.5, f"{n} operations in {dtype} leave no digit"
    return n * u / (1 - n * u)


def reordered(n, dtype=torch.float64, condition=1.0):
    r"""Compute the largest relative distance between two results of n operations each, :math:`2 \kappa \gamma_n`.

    Each result is within :math:`\kappa \gamma_n` of the exact one. The condition number :math:`\kappa` of a sum is the
    sum of absolute values divided by the absolute value of the sum; that of a linear system is its matrix's.
    """
    return 2 * condition * gamma(n, dtype)


# The attributes of methods that are numbers of steps. Each step evaluates one gradient.
STEPS = ("n_lower_steps", "n_upper_steps", "hypergradient.n_draws", "unroll.n_draws", "loss.regularises_encoder")
STEPS += ("prior_langevin.n_steps", "posterior_langevin.n_steps")


def evaluations(method):
    """Count the gradient evaluations in one iteration of a method, including unrolled ones."""
    found = (functools.reduce(lambda x, name: getattr(x, name, None), name.split("."), method) for name in STEPS)
    return 1 + sum(int(n or 0) for n in found)


def operations(method, v, n_iterations):
    r"""Count the operations in the longest chain of operations that depend on one another, in some iterations of a
    method.

    A forward and a backward pass sum over at most the P parameters, and a parameter's gradient is a sum over the
    examples and positions of the minibatch v: 2 P + |v| operations for an evaluation. Each of an iteration's
    evaluations (K lower steps, N unrolled steps, one upper step) and each iteration starts from the result of the one
    before. A step of a linear solver, or of a fixed-point iteration, differentiates an evaluation and counts as two.
    """
    n_parameters = sum(p.numel() for network in method.networks().values() for p in network.parameters())
    hypergradient = getattr(method, "hypergradient", None)
    solver = getattr(hypergradient, "inner", hypergradient)
    n_steps = getattr(solver, "n_terms", 0) + getattr(solver, "n_steps", 0)
    return n_iterations * (evaluations(method) + 2 * n_steps) * (2 * n_parameters + v.numel())


def adam_step(rule, lr, error, state, name):
    r"""Bound the change of each element of an Adam step if no gradient so far has an error above ``error``.

    The step is :math:`\alpha\, m / (r + \varepsilon), m = \sum_i a_i g_i, r = (\sum_i b_i g_i^2)^{1/2}` with weights
    that sum to 1. An error :math:`\delta` changes m, and the norm r, by at most :math:`\delta`. By Cauchy-Schwarz
    :math:`|m| \le C r, C^2 = \sum_i a_i^2 / b_i`. So

    .. math:: \left| \frac{m'}{r' + \varepsilon} - \frac{m}{r + \varepsilon} \right|
        \le \frac{|m' - m|}{r + \varepsilon} + \frac{|m'|}{r' + \varepsilon} \frac{|r - r'|}{r + \varepsilon}
        \le (1 + C) \frac{\delta}{r + \varepsilon},

    The change is never more than the sum of both steps, :math:`2 C`. ``state`` is the optimizer's state after the step.
    """
    (beta1, beta2) = rule.betas
    t = int(state["step"])
    weights = [((1 - beta1) * beta1**i / (1 - beta1**t), (1 - beta2) * beta2**i / (1 - beta2**t)) for i in range(t)]
    c = sum(a * a / b for a, b in weights) ** 0.5
    root = (state["exp_avg_sq"][name] / (1 - beta2**t)).sqrt()
    return lr * ((1 + c) * error / (root + rule.eps)).clamp(max=2 * c)


class Bounds(dict):
    r"""Bounds on the distances of two runs that differ only in the order of sums, for each parameter by name.

    Each bound is the sum of :func:`adam_step` over the steps. The error of a gradient is ``relative`` to the norm of
    the whole gradient, because rounding errors remain where the terms of an element cancel. Where whole gradients
    cancel, it is relative to the sum of their norms: see :func:`cancelling`.

    A parameter whose gradient is about as small as Adam's eps may move by more than rounding. The effect of that on
    later gradients is not counted: if the loss has no slope in a direction, it is assumed to have no curvature there
    either.

    Attributes:
        relative: The relative rounding error of all operations of the run, see :func:`reordered`; used from the first
        step.
        moments: Bounds on the errors of the optimizers' moments: :math:`\delta` for the first, a mean of gradients, and
        :math:`2 |g| \delta` for the second, a mean of their squares.
    """

    def __init__(self, relative):
        super().__init__()
        self.relative = relative
        self.moments = 0.0

    def add(self, names, group, lr, grads, state, terms=0.0):
        """Add the bound of one step.

        ``terms`` is the sum of the norms of those gradients whose difference or sum ``grads`` is.
        """
        size = float(norm(grads))
        error = self.relative * max(size, terms)
        self.moments = max(self.moments, error * max(1.0, 2 * size))
        for key, g in grads.items():
            rule = group.optimizer
            step = adam_step(rule, lr, error, state, key) if isinstance(rule, Adam) else torch.full_like(g, lr * error)
            for name in names[group.network, key]:
                self[name] = self.get(name, 0.0) + step


@contextmanager
def cancelling():
    r"""Record the sums of the norms of gradients that a hypergradient subtracts from one another, inside this context.

    Hypergradients without second derivatives subtract nearly equal gradients of G, whose rounding errors do not cancel:

    .. math:: \frac{g(\phi + \epsilon w) - g(\phi - \epsilon w)}{2 \epsilon}, \quad
        \partial_\theta J(y) + \lambda\, (g(y) - g(z)), \quad g = \partial_\theta G.
    """
    found = []
    difference = FiniteDifference.mixed
    penalty = Penalty.__call__

    def mixed(self, problem, theta, phi, w):
        epsilon = self.radius / norm(w)
        sides = [tree_map(lambda p, x, s=s: p + s * epsilon * x, phi, w) for s in (1, -1)]
        found.append(float(sum(norm(grad(problem.lower)(theta, side, 0)) for side in sides) / (2 * epsilon)))
        return difference(self, problem, theta, phi, w)

    def call(self, problem, theta, phi, state):
        step = penalty(self, problem, theta, phi, state)
        multiplier = state["penalty_multiplier"]
        y, z = self.fit(problem, theta, phi, unflatten(state["penalty_shift"], phi), multiplier)
        inner = sum(norm(grad(problem.lower)(theta, x, self.n_steps)) for x in (y, z))
        found.append(float(norm(grad(problem.upper)(theta, y)) + multiplier * inner))
        return step

    with mock.patch.object(FiniteDifference, "mixed", mixed), mock.patch.object(Penalty, "__call__", call):
        yield found


@contextmanager
def bounded(method, relative):
    """Return bounds on the changes of all steps that a method makes inside this context, without compilation.

    The bounds use gradients before clipping, because clipping reduces a gradient and its error alike.
    """
    bounds = Bounds(relative)
    plain = Method.update
    names = {}
    for network, module in method.networks().items():
        for key, p in module.named_parameters():
            names[network, key] = [name for name, q in method.named_parameters(remove_duplicate=False) if q is p]

    def update(self, state, name, loss, grads, *args, **named):
        after = plain(self, state, name, loss, grads, *args, **named)
        terms = cancelled.pop() if cancelled else 0.0
        bounds.add(names, self.groups[name], float(state.lrs[name]), grads, after.optimizers[name], terms)
        return after

    with updating(method, update), cancelling() as cancelled:
        yield bounds


def assert_same_iterations(found, expected, bounds):
    """Check that a run equals the same run with another order of sums, up to the bounds of :func:`bounded`.

    Each run is given by its state dict and by one or more records.

    Buffers and records have no optimizer step: they are compared with the relative bound, times the largest element of
    a tensor or a record, because the smaller elements may be differences of such numbers.
    """
    (state, records) = found
    (wanted, wanted_records) = expected
    assert state.keys() == wanted.keys()
    for name, x in wanted.items():
        if not x.is_floating_point() or not x.numel():
            assert torch.equal(state[name], x), name
            continue
        excess = (state[name] - x).abs() - bounds.relative * x.abs().max() - bounds.get(name, 0.0)
        assert (excess <= 0).all(), f"{name}: {float(excess.max()):.1e} more than rounding explains"
    records, wanted_records = ([r] if isinstance(r, dict) else r for r in (records, wanted_records))
    for record, wanted_record in zip(records, wanted_records, strict=True):
        largest = max(float(x.abs().max()) for x in wanted_record.values())
        torch.testing.assert_close(record, wanted_record, rtol=0, atol=bounds.relative * largest)
