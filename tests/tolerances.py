r"""How far apart two orders of the same arithmetic may end: bounds from the number of operations and the dtype.

An instruction set, a number of threads, a compiler and a number of processes change the order in which sums are taken,
and which products are fused into them. None of them changes what is summed. A tolerance here is what any order may do;
a mutation (a term, a factor, a sign, an order of steps) is larger by many powers of ten: tests/test_tolerances.py.
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
    r"""Largest relative error of n operations in a chain, :math:`\gamma_n = n u / (1 - n u)`.

    Each operation multiplies its result by one :math:`1 + \delta_i, |\delta_i| \le u = \epsilon / 2`, and
    :math:`|\prod_{i \le n} (1 + \delta_i)^{\pm 1} - 1| \le \gamma_n`. For a sum of n terms it is relative to the sum
    of their sizes, and holds for each order, and with or without fused products.

    Reference: Higham 2002, Accuracy and Stability of Numerical Algorithms, Lemma 3.1 and Section 4.2.
    """
    u = torch.finfo(dtype).eps / 2
    assert n * u < 0.5, f"{n} operations in {dtype} leave no digit"
    return n * u / (1 - n * u)


def reordered(n, dtype=torch.float64, condition=1.0):
    r"""Largest relative distance of two results of n operations each, :math:`2 \kappa \gamma_n`.

    Each lies within :math:`\kappa \gamma_n` of the exact result; the condition :math:`\kappa` of a sum is the sum of
    sizes over the size of the sum, that of a solved system of equations is its matrix's.
    """
    return 2 * condition * gamma(n, dtype)


# What a method's own numbers of steps are called; each step evaluates a gradient.
STEPS = ("n_lower_steps", "n_upper_steps", "hypergradient.n_draws", "unroll.n_draws", "loss.regularises_encoder")
STEPS += ("prior_langevin.n_steps", "posterior_langevin.n_steps")


def evaluations(method):
    """Gradient evaluations in one iteration of a method, unrolled ones included."""
    found = (functools.reduce(lambda x, name: getattr(x, name, None), name.split("."), method) for name in STEPS)
    return 1 + sum(int(n or 0) for n in found)


def operations(method, v, n_iterations):
    r"""Length of the longest chain of operations in some iterations of a method.

    A forward and a backward pass sum over no more than there are parameters P; the gradient of a parameter is a sum over
    the rows and positions of the minibatch v: 2 P + |v| an evaluation. The evaluations of an iteration (K lower steps,
    N unrolled ones, one upper step) and the iterations start where those before end. A step of a linear system, or of
    the iteration of a fixed point, is the derivative of an evaluation: two.
    """
    n_parameters = sum(p.numel() for network in method.networks().values() for p in network.parameters())
    hypergradient = getattr(method, "hypergradient", None)
    solver = getattr(hypergradient, "inner", hypergradient)
    n_steps = getattr(solver, "n_terms", 0) + getattr(solver, "n_steps", 0)
    return n_iterations * (evaluations(method) + 2 * n_steps) * (2 * n_parameters + v.numel())


def adam_step(rule, lr, error, state, name):
    r"""Largest change of a step of Adam, by element, where no gradient so far is off by more than ``error``.

    The step is :math:`\alpha\, m / (r + \varepsilon), m = \sum_i a_i g_i, r = (\sum_i b_i g_i^2)^{1/2}` with weights
    that sum to 1. An error :math:`\delta` moves m and r, a norm, by at most :math:`\delta`. By Cauchy-Schwarz
    :math:`|m| \le C r, C^2 = \sum_i a_i^2 / b_i`. So

    .. math:: \left| \frac{m'}{r' + \varepsilon} - \frac{m}{r + \varepsilon} \right|
        \le \frac{|m' - m|}{r + \varepsilon} + \frac{|m'|}{r' + \varepsilon} \frac{|r - r'|}{r + \varepsilon}
        \le (1 + C) \frac{\delta}{r + \varepsilon},

    and it is never more than the two steps together, :math:`2 C`; ``state`` is that after the step.
    """
    (beta1, beta2) = rule.betas
    t = int(state["step"])
    weights = [((1 - beta1) * beta1**i / (1 - beta1**t), (1 - beta2) * beta2**i / (1 - beta2**t)) for i in range(t)]
    c = sum(a * a / b for a, b in weights) ** 0.5
    root = (state["exp_avg_sq"][name] / (1 - beta2**t)).sqrt()
    return lr * ((1 + c) * error / (root + rule.eps)).clamp(max=2 * c)


class Bounds(dict):
    r"""How far the parameters of a run may be from those of the same run in another order, by their names.

    They are the sum of :func:`adam_step` over the steps. The error of a gradient is ``relative`` to the norm of the
    whole gradient, because where terms cancel in one element their rounding stays. Where whole gradients cancel, it is
    relative to the sum of their norms: see :func:`cancelling`.

    A parameter whose gradient is about as small as Adam's eps may move by more than rounding; its effect on later
    gradients is not counted: a loss without slope in a direction is taken to have no curvature in it either.

    Attributes:
        relative: The rounding of all operations up to the end, see :func:`reordered`; in the first step already.
        moments: Bound on the optimizers' moments: :math:`\delta` for the first, a mean of gradients, and
            :math:`2 |g| \delta` for the second, a mean of their squares.
    """

    def __init__(self, relative):
        super().__init__()
        self.relative = relative
        self.moments = 0.0

    def add(self, names, group, lr, grads, state, terms=0.0):
        """Count one step; ``terms`` is the sum of the norms of the gradients whose sum this one is, if it is one."""
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
    r"""Inside, lists the sums of norms of the gradients by which hypergradients are computed without second ones.

    These subtract gradients of G that are nearly equal, whose rounding stays as large as they are:

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
    """The bounds of all steps that a method makes inside, eagerly.

    The gradients are those before clipping: a clipped one is smaller, and off by less.
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
    """Hold a run (state dict, and a record or several) to the same one in another order, inside of :func:`bounded`.

    Buffers and records have no step of their own: they are held to the relative bound, of the largest number of a
    tensor or a record, because the others may be differences of such numbers.
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
