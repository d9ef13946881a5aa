"""Hypergradients by implicit differentiation of the lower-level problem."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat
from torch import Tensor

from eblvm_lit.core.functional import Params, grad, grad_and_value
from eblvm_lit.core.tensors import tree_map
from eblvm_lit.errors import ConfigError
from eblvm_lit.hypergradients.base import BilevelProblem, Hypergradient, HypergradientStep, LinearMap, LowerLevel

__all__ = [
    "AdjointHypergradient",
    "CurvatureHypergradient",
    "Implicit",
    "conjugate_gradient",
    "hessian_product",
    "mixed_product",
    "neumann",
]


def _dot(a: Params, b: Params) -> Tensor:
    total: Any = sum((a[key] * b[key]).sum() for key in a)
    return total


def _slope(problem: BilevelProblem, theta: Params, phi: Params, w: Params) -> Tensor:
    """Compute the directional derivative of the lower loss G with respect to phi along w."""
    return _dot(grad(problem.lower, argnums=1)(theta, phi, 0), w)


def hessian_product(problem: BilevelProblem, theta: Params, phi: Params, w: Params) -> Params:
    r"""Multiply the lower level's Hessian by a vector, :math:`\partial_\phi^2 G(\theta, \phi)\, w`.

    Example:
        >>> problem = BilevelProblem(None, lambda theta, phi, i: 3 * phi["f"] ** 2, None, {}, 0.1)
        >>> hessian_product(problem, {}, {"f": torch.tensor(1.0)}, {"f": torch.tensor(2.0)})
        {'f': tensor(12.)}
    """
    return grad(_slope, argnums=2)(problem, theta, phi, w)


def mixed_product(problem: BilevelProblem, theta: Params, phi: Params, w: Params) -> Params:
    r"""Multiply the mixed second derivative by a vector, :math:`\partial_\theta \partial_\phi G(\theta, \phi)\, w`.

    Example:
        >>> problem = BilevelProblem(None, lambda theta, phi, i: theta["t"] * phi["f"], None, {}, 0.1)
        >>> mixed_product(problem, {"t": torch.tensor(1.0)}, {"f": torch.tensor(1.0)}, {"f": torch.tensor(2.0)})
        {'t': tensor(2.)}
    """
    return grad(_slope, argnums=1)(problem, theta, phi, w)


def conjugate_gradient(
    matvec: LinearMap, b: Params, n_terms: int, *, start: Params | None = None, precondition: LinearMap | None = None
) -> Params:
    """Solve A x = b for a symmetric A with ``n_terms`` steps of the preconditioned conjugate gradient method.

    If A is not positive along a search direction, as a noisy Hessian far from the lower optimum may be, the iteration
    stops and returns the solution in the subspace that it has searched so far.

    Args:
        matvec: A function that multiplies a vector by A.
        b: The right-hand side.
        n_terms: The number of steps; each multiplies by A once.
        start: The first x, which costs one more product with A; zero if not given.
        precondition: A function that multiplies by an approximate inverse of A, symmetric and positive; the identity
            if not given.

    Example:
        >>> conjugate_gradient(lambda x: {"x": 4 * x["x"]}, {"x": torch.ones(2)}, 1)
        {'x': tensor([0.2500, 0.2500])}
    """
    precondition = precondition or (lambda r: r)
    if start is None:
        x = tree_map(torch.zeros_like, b)
        r = b
    else:
        x = start
        r = tree_map(torch.sub, b, matvec(start))
    p = z = precondition(r)
    rz = _dot(r, z)
    going = torch.ones_like(rz)
    for _ in range(n_terms):
        ap = matvec(p)
        curvature = _dot(p, ap)
        going = going * (curvature > 0) * (rz > 0)
        alpha = going * rz / torch.where(curvature > 0, curvature, 1.0)
        x = tree_map(lambda u, w, alpha=alpha: u + alpha * w, x, p)
        r = tree_map(lambda u, w, alpha=alpha: u - alpha * w, r, ap)
        z = precondition(r)
        rz_next = _dot(r, z)
        beta = rz_next / torch.where(rz > 0, rz, 1.0)
        p = tree_map(lambda u, w, beta=beta: u + beta * w, z, p)
        rz = rz_next
    return x


def neumann(matvec: LinearMap, b: Params, n_terms: int, step_size: float) -> Params:
    r"""Approximate :math:`A^{-1} b` by n terms of a Neumann series, :math:`\alpha \sum_{i<n} (I - \alpha A)^i b`.

    ``step_size`` is alpha, and ``n_terms`` is n. If alpha is the step size of plain gradient descent, the sum equals
    the result of unrolling n steps that start at the lower optimum.

    Example:
        >>> neumann(lambda x: {"x": 4 * x["x"]}, {"x": torch.ones(2)}, 60, 0.1)
        {'x': tensor([0.2500, 0.2500])}
    """
    term = b
    total = tree_map(torch.zeros_like, b)
    for i in range(n_terms):
        if i > 0:
            term = tree_map(lambda t, a: t - step_size * a, term, matvec(term))
        total = tree_map(torch.add, total, term)
    return tree_map(lambda t: step_size * t, total)


class AdjointHypergradient(Hypergradient):
    r"""The hypergradient as a sum of the gradient of J at fixed phi and of the mixed derivative of G times a vector w.

    The vector w is called the adjoint.

    .. math:: \partial_\theta J + \partial_\theta \partial_\phi G\, w, \quad
        w \approx -(\partial_\phi^2 G)^{-1}\, \partial_\phi J

    By the implicit function theorem the sum is exact if phi is at the lower optimum and w is exact. A subclass
    computes w.
    """

    n_draws = 1

    @abstractmethod
    def adjoint(
        self, problem: BilevelProblem, theta: Params, phi: Params, outer: Params, state: Mapping[str, Tensor]
    ) -> tuple[Params, dict[str, Tensor]]:
        """Compute the adjoint w, and the tensors to keep for the next iteration.

        Args:
            problem: The functions J and G, and the optimizer that minimises G.
            theta: The parameters of the model.
            phi: The parameters of the posterior.
            outer: The gradient dJ/dphi of the whole minibatch.
            state: The tensors that the previous iteration kept.
        """

    def mixed(self, problem: BilevelProblem, theta: Params, phi: Params, w: Params) -> Params:
        """Multiply the mixed second derivative of G by the adjoint w."""
        return mixed_product(problem, theta, phi, w)

    def __call__(
        self, problem: BilevelProblem, theta: Params, phi: Params, state: Mapping[str, Tensor] | None = None
    ) -> HypergradientStep:
        """Compute the upper loss J at the current phi, and its hypergradient with respect to theta."""
        (direct, outer), value = grad_and_value(problem.upper, argnums=(0, 1))(theta, phi)
        # The linear system uses the whole minibatch, so that all processes compute the same w.
        w, kept = self.adjoint(problem, theta, phi, problem.whole(outer), state or {})
        indirect = self.mixed(problem, theta, phi, w)
        return HypergradientStep(value, tree_map(torch.add, direct, indirect), kept)


class CurvatureHypergradient(AdjointHypergradient):
    r"""The base class of hypergradients that use the damped curvature of G, :math:`\partial_\phi^2 G + \lambda I`.

    Args:
        damping: The number lambda, which is added to the diagonal of the curvature.
        curvature: ``hessian`` for the Hessian of G, or ``fisher`` for the Fisher information of q in its place, which
            requires a KL divergence in the lower level.
    """

    def __init__(self, *, damping: NonNegativeFloat, curvature: Literal["hessian", "fisher"]) -> None:
        self.damping = damping
        self.curvature = curvature

    def check(self, lower: LowerLevel) -> None:
        """Raise a ConfigError if ``curvature="fisher"`` is used with a divergence other than KL.

        Raises:
            ConfigError: If ``curvature="fisher"`` and the lower level's divergence is not KL.
        """
        if self.curvature == "fisher" and not lower.divergence.curved_as_information:
            raise ConfigError(
                "The hypergradient's curvature=fisher is the curvature of divergence=kl: use curvature=hessian with "
                f"{type(lower.divergence).__name__}."
            )

    def curvature_product(self, problem: BilevelProblem, theta: Params, phi: Params) -> LinearMap:
        """Return a function that multiplies a vector by the damped curvature of G on the whole minibatch."""
        information: Any = problem.information  # the method ``check`` ensures that it is not None if curvature="fisher"

        def matvec(w: Params) -> Params:
            product = information(phi, w) if self.curvature == "fisher" else hessian_product(problem, theta, phi, w)
            return tree_map(lambda hw, x: hw + self.damping * x, problem.whole(product), w)

        return matvec


class Implicit(CurvatureHypergradient):
    r"""The implicit-function hypergradient, computed by solving a linear system with the lower level's Hessian.

    .. math:: \partial_\theta J + \partial_\theta \partial_\phi G \, w, \quad
        (\partial_\phi^2 G + \lambda I)\, w = -\partial_\phi J

    Only Hessian-vector products are computed. The memory of each product is freed before the next one is computed, so
    memory does not grow with the number of products. At the lower optimum the hypergradient becomes exact as n_terms
    grows; away from it the bias is proportional to the distance of phi from phi*.

    The Hessian of a divergence that is estimated with one relaxed particle is far from positive, and conjugate
    gradients stop at their first step. ``curvature="fisher"`` replaces it by the Fisher information of q. The Fisher
    information equals the Hessian of KL(q || p) where q = p, and near there in expectation; it is positive, needs no
    particle and is cheaper.

    Args:
        n_terms: The number of conjugate-gradient steps, or of terms of the Neumann series.
        solver: ``cg`` for conjugate gradients, or ``neumann`` for the Neumann series.
        damping: The number lambda, which is added to the curvature's diagonal.
        step_size: The number alpha of the Neumann series, which must be below 2 / (the Hessian's largest eigenvalue).
        curvature: ``hessian``, or ``fisher``, which requires a KL divergence in the lower level.

    Raises:
        ConfigError: If the step size is missing for ``neumann``, or given for ``cg``.

    Example:
        >>> theta, phi = {"t": torch.tensor(1.0)}, {"f": torch.tensor(1.0)}
        >>> problem = BilevelProblem(  # phi* = theta, J = phi^2 / 2: the hypergradient is theta
        ...     upper=lambda theta, phi: phi["f"] ** 2 / 2,
        ...     lower=lambda theta, phi, i: (phi["f"] - theta["t"]) ** 2 / 2,
        ...     optimizer=None, state={}, lr=0.1)
        >>> Implicit(n_terms=1)(problem, theta, phi)[1]
        {'t': tensor(1.)}
    """

    def __init__(
        self,
        *,
        n_terms: NonNegativeInt = 10,
        solver: Literal["cg", "neumann"] = "cg",
        damping: NonNegativeFloat = 0.0,
        step_size: PositiveFloat | None = None,
        curvature: Literal["hessian", "fisher"] = "hessian",
    ) -> None:
        super().__init__(damping=damping, curvature=curvature)
        if (solver == "neumann") != (step_size is not None):
            raise ConfigError("step_size belongs to solver=neumann: set both, or neither.")
        self.n_terms = n_terms
        self.step_size = step_size

    @property
    def title(self) -> str:
        """Return a short name of the hypergradient, with the number of terms."""
        return f"implicit hypergradient of {self.n_terms} terms"

    def adjoint(
        self, problem: BilevelProblem, theta: Params, phi: Params, outer: Params, state: Mapping[str, Tensor]
    ) -> tuple[Params, dict[str, Tensor]]:
        """Approximate the adjoint w = -(damped curvature)^-1 dJ/dphi. The returned dict of tensors to keep is empty."""
        matvec = self.curvature_product(problem, theta, phi)
        b = tree_map(torch.neg, outer)
        if self.step_size is None:
            return conjugate_gradient(matvec, b, self.n_terms), {}
        return neumann(matvec, b, self.n_terms, self.step_size), {}
