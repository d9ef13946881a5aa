"""The hypergradient by differentiation through N unrolled lower-level steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import NonNegativeInt, PositiveFloat
from torch import Tensor

from eblvm_lit.core.functional import Params, grad, grad_and_value
from eblvm_lit.core.tensors import clip
from eblvm_lit.errors import ConfigError
from eblvm_lit.hypergradients.base import BilevelProblem, Hypergradient, HypergradientStep
from eblvm_lit.optimizers.base import Optimizer
from eblvm_lit.optimizers.sgd import SGD

__all__ = ["Unroll"]


class Unroll(Hypergradient):
    r"""The gradient of :math:`J(\theta, \hat\phi^N(\theta))`, computed by differentiating through N lower-level steps.

    .. math:: \hat\phi^0 = \phi, \quad \hat\phi^n = \hat\phi^{n-1} - \alpha\, \partial_\phi G(\theta, \hat\phi^{n-1})

    Reference: Bao et al. 2020, Eqs. 13-14. These equations describe gradient descent. The published numbers were made
    with unrolled steps of Adam, which start from the moments of the lower level's Adam; this is the default. With N = 0
    the gradient consists only of the direct term, dJ/dtheta at fixed phi.

    Args:
        n_unroll: The number N of unrolled steps.
        descent: ``live`` unrolls the lower level's optimizer from its present state, with its clipping; ``plain``
            unrolls gradient descent.
        step_size: The step size alpha of plain descent.
        lr: The learning rate of the live steps under a schedule: that of the ``current`` iteration, which the lower
            steps before them also have, or that of the ``next`` iteration, as in the authors' code. The two are equal
            if the rate is constant.

    Raises:
        ConfigError: If plain descent has no step size, or if live descent has one.

    Example:
        >>> import torch
        >>> sgd, theta, phi = SGD(lr=0.1), {"t": torch.tensor(1.0)}, {"f": torch.tensor(0.0)}
        >>> problem = BilevelProblem(  # phi* = theta, J = phi^2 / 2: the hypergradient is theta
        ...     upper=lambda theta, phi: phi["f"] ** 2 / 2,
        ...     lower=lambda theta, phi, i: (phi["f"] - theta["t"]) ** 2 / 2,
        ...     optimizer=sgd, state=sgd.init(phi), lr=0.1)
        >>> [round(Unroll(n_unroll=n)(problem, theta, phi)[1]["t"].item(), 2) for n in (0, 1, 50)]
        [0.0, 0.01, 0.99]
    """

    def __init__(
        self,
        *,
        n_unroll: NonNegativeInt,
        descent: Literal["live", "plain"] = "live",
        step_size: PositiveFloat | None = None,
        lr: Literal["current", "next"] = "current",
    ) -> None:
        if (descent == "plain") != (step_size is not None):
            raise ConfigError("step_size belongs to plain descent: set both descent=plain and step_size, or neither.")
        self.n_draws = n_unroll
        self.lr_ahead = int(lr == "next")
        self.rule: Optimizer | None = None if step_size is None else SGD(lr=step_size)

    @property
    def title(self) -> str:
        """Return the number of unrolled steps in the form ``N = ...``."""
        return f"N = {self.n_draws}"

    def memory_hints(self) -> list[str]:
        """Return advice on how to reduce the memory of the gradient: fewer unrolled steps, or no unrolling."""
        return [f"lower n_unroll (N={self.n_draws})", "use hypergradient=implicit"] if self.n_draws else []

    def __call__(
        self, problem: BilevelProblem, theta: Params, phi: Params, state: Mapping[str, Tensor] | None = None
    ) -> HypergradientStep:
        """Compute the upper loss J at phi after N unrolled steps, and the gradient of J with respect to theta."""
        descended = problem.lower_gradient or grad(problem.lower, argnums=1)
        rule, lr = (problem.optimizer, problem.lr) if self.rule is None else (self.rule, self.rule.lr)

        def objective(theta: Params) -> Tensor:
            unrolled = phi
            moments = problem.state if self.rule is None else rule.init(phi)
            for i in range(self.n_draws):
                # Each step uses the gradient of G on the whole minibatch. If each process unrolled steps on its own
                # examples, the mean of the resulting hypergradients would differ from a single process' hypergradient.
                grads = descended(theta, unrolled, i)
                grads = grads if problem.mean is None else problem.mean(grads)
                grads = grads if rule.clip_norm is None else clip(grads, rule.clip_norm)
                unrolled, moments = rule.update(unrolled, grads, moments, lr)
            return problem.upper(theta, unrolled)

        grads, value = grad_and_value(objective)(theta)
        return HypergradientStep(value, grads, {})
