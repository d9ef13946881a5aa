"""Implicit differentiation of the lower problem."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from eblvm_lit.core.functional import Params, grad, grad_and_value, tree_map
from eblvm_lit.divergences.base import Divergence
from eblvm_lit.errors import ConfigError
from eblvm_lit.hypergradients.base import BilevelProblem, Hypergradient

__all__ = ["Implicit", "conjugate_gradient", "hessian_product", "mixed_product", "neumann"]

LinearMap = Callable[[Params], Params]


def _dot(a: Params, b: Params) -> Tensor:
    total: Any = sum((a[key] * b[key]).sum() for key in a)
    return total


def _slope(problem: BilevelProblem, theta: Params, phi: Params, w: Params) -> Tensor:
    """The derivative of G as phi moves along w."""
    return _dot(grad(problem.lower, argnums=1)(theta, phi, 0), w)


def hessian_product(problem: BilevelProblem, theta: Params, phi: Params, w: Params) -> Params:
    r"""The lower Hessian times a vector, :math:`\partial_\phi^2 G(\theta, \phi)\, w`.

    Example:
        >>> problem = BilevelProblem(None, lambda theta, phi, i: 3 * phi["f"] ** 2, None, {}, 0.1)
        >>> hessian_product(problem, {}, {"f": torch.tensor(1.0)}, {"f": torch.tensor(2.0)})
        {'f': tensor(12.)}
    """
    return grad(_slope, argnums=2)(problem, theta, phi, w)


def mixed_product(problem: BilevelProblem, theta: Params, phi: Params, w: Params) -> Params:
    r"""The mixed derivative times a vector, :math:`\partial_\theta \partial_\phi G(\theta, \phi)\, w`.

    Example:
        >>> problem = BilevelProblem(None, lambda theta, phi, i: theta["t"] * phi["f"], None, {}, 0.1)
        >>> mixed_product(problem, {"t": torch.tensor(1.0)}, {"f": torch.tensor(1.0)}, {"f": torch.tensor(2.0)})
        {'t': tensor(2.)}
    """
    return grad(_slope, argnums=1)(problem, theta, phi, w)


def conjugate_gradient(matvec: LinearMap, b: Params, n_terms: int) -> Params:
    """Solve A x = b for a symmetric A by n_terms steps of conjugate gradient from zero.

    Where A turns out not to be positive along a search direction (a noisy Hessian far from the lower optimum), the
    iteration stays where it is: the solution in the subspace searched so far.

    Example:
        >>> conjugate_gradient(lambda x: {"x": 4 * x["x"]}, {"x": torch.ones(2)}, 1)
        {'x': tensor([0.2500, 0.2500])}
    """
    x, r, p = tree_map(torch.zeros_like, b), b, b
    rr = _dot(r, r)
    going = torch.ones_like(rr)
    for _ in range(n_terms):
        ap = matvec(p)
        curvature = _dot(p, ap)
        going = going * (curvature > 0) * (rr > 0)
        alpha = going * rr / torch.where(curvature > 0, curvature, 1.0)
        x = tree_map(lambda u, w, alpha=alpha: u + alpha * w, x, p)
        r = tree_map(lambda u, w, alpha=alpha: u - alpha * w, r, ap)
        rr_next = _dot(r, r)
        beta = rr_next / torch.where(rr > 0, rr, 1.0)
        p = tree_map(lambda u, w, beta=beta: u + beta * w, r, p)
        rr = rr_next
    return x


def neumann(matvec: LinearMap, b: Params, n_terms: int, step_size: float) -> Params:
    r"""Approximate :math:`A^{-1} b` by :math:`\alpha \sum_{i<n} (I - \alpha A)^i b`.

    With the step size of a plain descent this is what unrolling it n_terms steps from the lower optimum gives.

    Example:
        >>> neumann(lambda x: {"x": 4 * x["x"]}, {"x": torch.ones(2)}, 60, 0.1)
        {'x': tensor([0.2500, 0.2500])}
    """
    term, total = b, b
    for _ in range(n_terms - 1):
        term = tree_map(lambda t, a: t - step_size * a, term, matvec(term))
        total = tree_map(torch.add, total, term)
    return tree_map(lambda t: step_size * t, total)


class Implicit(Hypergradient):
    r"""The implicit-function hypergradient, with an approximate inverse of the lower Hessian.

    .. math:: \partial_\theta J - \partial_\theta \partial_\phi G \, w, \quad
        (\partial_\phi^2 G + \lambda I)\, w = \partial_\phi J

    Only Hessian-vector products are taken, each forgotten before the next: memory does not grow with their number.
    Exact at the lower optimum as n_terms grows; away from it, the bias is proportional to the distance of phi.

    The Hessian of a divergence estimated with one relaxed particle is far from positive: conjugate gradients stop at
    their first step. ``curvature="fisher"`` puts the Fisher information of q in its place, which is what the Hessian of
    KL(q || p) is where q = p (and in expectation near there), is positive, needs no particle, and is cheaper.

    Args:
        n_terms: Number of conjugate-gradient steps or of terms of the series.
        solver: ``cg`` or ``neumann``.
        damping: lambda, added to the Hessian's diagonal.
        step_size: alpha of the Neumann series, below 2 / the Hessian's largest eigenvalue.
        curvature: ``hessian``, or ``fisher`` if the lower level is a KL divergence.

    Raises:
        ConfigError: For fewer than one term, negative damping, an unknown solver or curvature, or a step size missing
            for ``neumann`` or given for ``cg``.

    Example:
        >>> theta, phi = {"t": torch.tensor(1.0)}, {"f": torch.tensor(1.0)}
        >>> problem = BilevelProblem(  # phi* = theta, J = phi^2 / 2: the hypergradient is theta
        ...     upper=lambda theta, phi: phi["f"] ** 2 / 2,
        ...     lower=lambda theta, phi, i: (phi["f"] - theta["t"]) ** 2 / 2,
        ...     optimizer=None, state={}, lr=0.1)
        >>> Implicit(n_terms=1)(problem, theta, phi)[1]
        {'t': tensor(1.)}
    """

    n_draws = 1

    def __init__(
        self,
        *,
        n_terms: int = 10,
        solver: Literal["cg", "neumann"] = "cg",
        damping: float = 0.0,
        step_size: float | None = None,
        curvature: Literal["hessian", "fisher"] = "hessian",
    ) -> None:
        if n_terms < 1 or damping < 0:
            raise ConfigError(f"Implicit needs n_terms >= 1 and damping >= 0, not {n_terms} and {damping}.")
        if solver not in ("cg", "neumann"):
            raise ConfigError(f"The implicit solver is 'cg' or 'neumann', not {solver!r}.")
        if (solver == "neumann") != (step_size is not None):
            raise ConfigError("step_size belongs to solver=neumann: set both, or neither.")
        if curvature not in ("hessian", "fisher"):
            raise ConfigError(f"The implicit curvature is 'hessian' or 'fisher', not {curvature!r}.")
        self.n_terms, self.damping, self.step_size, self.curvature = n_terms, damping, step_size, curvature

    def check(self, divergence: Divergence) -> None:
        """Refuse the Fisher information for other divergences than KL.

        Raises:
            ConfigError: In that case.
        """
        if self.curvature == "fisher" and not divergence.curved_as_information:
            raise ConfigError(
                "hypergradient.curvature=fisher is the curvature of divergence=kl: use curvature=hessian with "
                f"{type(divergence).__name__}."
            )

    def solve(self, matvec: LinearMap, b: Params) -> Params:
        """The chosen approximation of the inverse Hessian times b."""
        if self.step_size is None:
            return conjugate_gradient(matvec, b, self.n_terms)
        return neumann(matvec, b, self.n_terms, self.step_size)

    @property
    def title(self) -> str:
        """How the linear system is solved."""
        return f"implicit hypergradient of {self.n_terms} terms"

    def __call__(self, problem: BilevelProblem, theta: Params, phi: Params) -> tuple[Tensor, Params]:
        """The value of J at the live phi and its hypergradient with respect to theta."""
        (direct, outer), value = grad_and_value(problem.upper, argnums=(0, 1))(theta, phi)
        mean = problem.mean or (lambda params: params)
        information: Any = problem.information  # there is one where the curvature is its own: see check

        def matvec(w: Params) -> Params:
            product = information(phi, w) if self.curvature == "fisher" else hessian_product(problem, theta, phi, w)
            return tree_map(lambda hw, x: hw + self.damping * x, mean(product), w)

        # the linear system is the whole minibatch's; what it gives is the same in all processes
        w = self.solve(matvec, mean(outer))
        indirect = mixed_product(problem, theta, phi, w)
        return value, tree_map(torch.sub, direct, indirect)
