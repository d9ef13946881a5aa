"""Implicit hypergradients that replace second derivatives by a finite difference or by Adam's preconditioner."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import PositiveFloat
from torch import Tensor

from eblvm_lit.core.functional import Params, grad
from eblvm_lit.core.tensors import norm, tree_map
from eblvm_lit.hypergradients.base import BilevelProblem, LowerLevel, adam_preconditioner, needs_adam
from eblvm_lit.hypergradients.implicit import AdjointHypergradient

__all__ = ["AdamAdjoint", "FiniteDifference", "difference_product"]


def difference_product(problem: BilevelProblem, theta: Params, phi: Params, w: Params, radius: float) -> Params:
    r"""Approximate the product of the lower loss's mixed second derivative and a vector w by a central difference.

    .. math:: \partial_\theta \partial_\phi G\, w \approx
        \frac{\partial_\theta G(\theta, \phi + \epsilon w) - \partial_\theta G(\theta, \phi - \epsilon w)}{2 \epsilon},
        \quad \epsilon = r / \|w\|

    The error is of order :math:`\epsilon^2`. Both gradients use the same noise. ``radius`` is r.
    Reference: Liu et al. 2019, DARTS.

    Example:
        >>> problem = BilevelProblem(None, lambda theta, phi, i: theta["t"] * phi["f"], None, {}, 0.1)
        >>> theta, phi, w = {"t": torch.tensor(1.0)}, {"f": torch.tensor(0.0)}, {"f": torch.tensor(2.0)}
        >>> difference_product(problem, theta, phi, w, radius=0.5)
        {'t': tensor(2.)}
    """
    size = norm(w)
    # If w is zero, the product is zero for every epsilon. In this case epsilon is the radius, which avoids a division
    # by zero.
    epsilon = radius / torch.where(size > 0, size, torch.ones_like(size))
    sides = []
    for sign in (1, -1):
        moved = tree_map(lambda p, x, sign=sign: p + sign * epsilon * x, phi, w)
        sides.append(grad(problem.lower)(theta, moved, 0))
    return tree_map(lambda ahead, behind: (ahead - behind) / (2 * epsilon), *sides)


class AdamAdjoint(AdjointHypergradient):
    r"""The implicit hypergradient with Adam's diagonal preconditioner in place of the lower level's Hessian.

    .. math:: w = -\alpha D^{-1} \partial_\phi J, \quad D = \sqrt{\hat s} + \varepsilon

    It needs no Hessian-vector product, so it is cheap, but it is biased. Its indirect term equals the indirect term of
    one unrolled step of Adam with the learning rate :math:`\alpha / (1 - \beta_1)`, late in training and with a
    constant second moment. Reference: Choe et al. 2023, SAMA.

    Args:
        scale: The factor alpha.

    Example:
        >>> AdamAdjoint(scale=0.1).title
        "implicit hypergradient with Adam's diagonal"
    """

    def __init__(self, *, scale: PositiveFloat = 1.0) -> None:
        self.scale = scale

    @property
    def title(self) -> str:
        """Return a short name of the hypergradient."""
        return "implicit hypergradient with Adam's diagonal"

    def check(self, lower: LowerLevel) -> None:
        """Raise a ConfigError if the lower level is not optimized by Adam.

        Raises:
            ConfigError: If the lower level's optimizer is not Adam.
        """
        needs_adam(lower)

    def adjoint(
        self, problem: BilevelProblem, theta: Params, phi: Params, outer: Params, state: Mapping[str, Tensor]
    ) -> tuple[Params, dict[str, Tensor]]:
        """Return the adjoint -alpha D^-1 dJ/dphi, where D is Adam's denominator, and an empty dict: nothing is kept."""
        return tree_map(lambda x: -self.scale * x, adam_preconditioner(problem)(outer)), {}


class FiniteDifference(AdjointHypergradient):
    r"""The implicit hypergradient, with the mixed second derivative approximated by :func:`difference_product`.

    .. math:: \partial_\theta J + \frac{\partial_\theta G(\theta, \phi + \epsilon w) -
        \partial_\theta G(\theta, \phi - \epsilon w)}{2 \epsilon}, \quad \epsilon = r / \|w\|

    No second derivative of G is needed if the computation of w needs none, which holds for :class:`AdamAdjoint` and
    for the other adjoints with ``curvature="fisher"``.

    Args:
        adjoint: The hypergradient whose adjoint w is used: :class:`AdamAdjoint`,
            :class:`~eblvm_lit.hypergradients.warm.Warm` or :class:`~eblvm_lit.hypergradients.implicit.Implicit`.
        radius: The distance r by which phi is moved in either direction.

    Example:
        >>> theta, phi = {"t": torch.tensor(1.0)}, {"f": torch.tensor(1.0)}
        >>> problem = BilevelProblem(  # phi* = theta, J = phi^2 / 2: the hypergradient is theta
        ...     upper=lambda theta, phi: phi["f"] ** 2 / 2,
        ...     lower=lambda theta, phi, i: (phi["f"] - theta["t"]) ** 2 / 2,
        ...     optimizer=None, state={}, lr=0.1)
        >>> from eblvm_lit.hypergradients.implicit import Implicit
        >>> round(FiniteDifference(adjoint=Implicit(n_terms=1))(problem, theta, phi).gradient["t"].item(), 4)
        1.0
    """

    def __init__(self, *, adjoint: AdjointHypergradient, radius: PositiveFloat = 1e-2) -> None:
        self.inner = adjoint
        self.radius = radius
        self.n_draws = adjoint.n_draws

    @property
    def title(self) -> str:
        """Return a short name of the hypergradient, which starts with the name of the adjoint."""
        return f"{self.inner.title}, mixed product by a finite difference"

    def check(self, lower: LowerLevel) -> None:
        """Raise a ConfigError if the adjoint cannot be used with the lower level."""
        self.inner.check(lower)

    def init_state(self, phi: Params) -> dict[str, Tensor]:
        """Return the initial values of the tensors that the adjoint keeps between iterations."""
        return self.inner.init_state(phi)

    def adjoint(
        self, problem: BilevelProblem, theta: Params, phi: Params, outer: Params, state: Mapping[str, Tensor]
    ) -> tuple[Params, dict[str, Tensor]]:
        """Return the adjoint w that ``inner`` computes, and the tensors that ``inner`` keeps for the next iteration."""
        return self.inner.adjoint(problem, theta, phi, outer, state)

    def mixed(self, problem: BilevelProblem, theta: Params, phi: Params, w: Params) -> Params:
        """Approximate the product of the mixed second derivative of G and the adjoint w by a central difference."""
        return difference_product(problem, theta, phi, w, self.radius)
