"""Quadratic bi-level problems whose hypergradient is known in closed form."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from eblvm_lit.core.functional import Params
from eblvm_lit.hypergradients.base import BilevelProblem
from eblvm_lit.optimizers.sgd import SGD

__all__ = ["Quadratic", "relative_error"]

N_PHI = 100
N_THETA = 10
COUPLING = 0.3
RIDGE = 0.1


def relative_error(estimate: Tensor, truth: Tensor) -> float:
    return (torch.linalg.vector_norm(estimate - truth) / torch.linalg.vector_norm(truth)).item()


class Quadratic:
    r"""A bi-level problem with a strongly convex quadratic lower level and a quadratic upper level, in float64.

    .. math:: G = \frac12 \phi^T H \phi - \phi^T B \theta + \frac{q}{4} \sum_i (\phi - A \theta)_i^4, \quad A = H^{-1} B
    .. math:: J = \frac12 \|\phi - r\|^2 + \phi^T R\, \theta + \frac{\nu}{2} \|\theta\|^2

    H has a random orthogonal basis and a logarithmically spaced spectrum from 1 / kappa to L = 1. A is H^-1 times a
    random matrix, with its columns made orthonormal. So phi* = A theta lies mostly in the flat directions of H, as for
    a random B, but the outer problem has a condition number near one for every kappa. The quartic term changes neither
    phi* nor the second derivatives at phi*.

    Args:
        kappa: The condition number of H.
        quartic: The coefficient q of the quartic term.
        seed: Seed of the random matrices.
    """

    def __init__(self, kappa: float, *, quartic: float = 0.0, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        self.kappa = kappa
        self.quartic = quartic
        self.spectrum = kappa ** torch.linspace(-1, 0, N_PHI, dtype=torch.float64)
        self.basis = torch.linalg.qr(normal(N_PHI, N_PHI))[0]
        self.H = self.of_hessian(lambda eigenvalues: eigenvalues)
        self.A = torch.linalg.qr(self.of_hessian(torch.reciprocal) @ normal(N_PHI, N_THETA))[0]
        self.B = self.H @ self.A
        self.R = COUPLING * torch.linalg.qr(normal(N_PHI, N_THETA))[0]
        self.r = normal(N_PHI)
        self.direction = normal(N_PHI)
        self.direction /= torch.linalg.vector_norm(self.direction)
        self.theta = normal(N_THETA)
        self.n_evaluations = 0

    def of_hessian(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply a function to the eigenvalues of H, and return the resulting matrix."""
        return self.basis * function(self.spectrum) @ self.basis.T

    def lower(self, theta: Params, phi: Params, _: int) -> Tensor:
        """Compute the lower objective G, and count the call.

        Each call is part of one gradient or of one product with a second derivative.
        """
        self.n_evaluations += 1
        t = theta["theta"]
        f = phi["phi"]
        value = f @ (0.5 * (self.H @ f) - self.B @ t)
        return value + self.quartic / 4 * (f - self.A @ t).pow(4).sum() if self.quartic else value

    def upper(self, theta: Params, phi: Params) -> Tensor:
        """Compute the upper objective J."""
        t = theta["theta"]
        f = phi["phi"]
        return 0.5 * (f - self.r).square().sum() + f @ (self.R @ t) + RIDGE / 2 * t @ t

    def problem(self) -> BilevelProblem:
        """Return the problem in the form that hypergradients take.

        Its lower optimizer is gradient descent with step size 1 / L.
        """
        sgd = SGD(lr=1.0)
        return BilevelProblem(self.upper, self.lower, sgd, sgd.init({"phi": self.r}), 1.0)

    def optimum(self, distance: float = 0.0) -> Tensor:
        """Return the lower optimum phi*, or a point at some distance from it in a random direction.

        The distance is relative to the norm of phi*.
        """
        phi = self.A @ self.theta
        return phi + distance * torch.linalg.vector_norm(phi) * self.direction

    def direct(self, phi: Tensor) -> Tensor:
        """Compute dJ/dtheta at fixed phi, the direct term of the hypergradient."""
        return self.R.T @ phi + RIDGE * self.theta

    def outer(self, phi: Tensor) -> Tensor:
        """Compute the gradient dJ/dphi of the upper objective at the problem's theta."""
        return phi - self.r + self.R @ self.theta

    def hypergradient(self) -> Tensor:
        """Compute the exact hypergradient dJ(theta, phi*(theta))/dtheta."""
        return self.direct(self.optimum()) + self.A.T @ self.outer(self.optimum())

    def penalised(self, multiplier: float, distance: float = 0.0) -> tuple[Tensor, Tensor]:
        """Compute the limit of the difference y - z of the penalty's two variables, and the gradient at this limit.

        The closed forms hold for a constant phi, one step per iteration and q = 0.
        """
        phi = self.optimum(distance)
        shift = -self.of_hessian(lambda eigenvalues: 1 / (1 + multiplier * eigenvalues)) @ self.outer(phi)
        z = phi - self.H @ (phi - self.optimum())
        return shift, self.direct(z + shift) - multiplier * self.B.T @ shift

    def solution(self) -> Tensor:
        """Compute the theta that minimises J(theta, phi*(theta))."""
        mixed = self.A.T @ self.R
        ridge = RIDGE * torch.eye(N_THETA, dtype=torch.float64)
        return torch.linalg.solve(self.A.T @ self.A + mixed + mixed.T + ridge, self.A.T @ self.r)
