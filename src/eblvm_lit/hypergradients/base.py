"""The base class of hypergradients, and the bi-level problem that they differentiate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import NamedTuple, cast

import torch
from torch import Tensor

from eblvm_lit.core.functional import Params
from eblvm_lit.core.tensors import tree_map
from eblvm_lit.divergences.base import Divergence
from eblvm_lit.energies.base import Energy
from eblvm_lit.errors import ConfigError
from eblvm_lit.optimizers.adam import Adam
from eblvm_lit.optimizers.base import Optimizer, State
from eblvm_lit.posteriors.base import Posterior

__all__ = [
    "BilevelProblem",
    "Hypergradient",
    "HypergradientStep",
    "LinearMap",
    "LowerLevel",
    "adam_preconditioner",
    "needs_adam",
]

LinearMap = Callable[[Params], Params]


class BilevelProblem(NamedTuple):
    r"""The bi-level problem: minimise J(theta, phi*(theta)) over theta, where phi*(theta) minimises G(theta, phi).

    If several processes share a minibatch, J and G are means over this process' examples.

    Attributes:
        upper: The function J(theta, phi), with a scalar value. If ``energy`` and ``posterior`` are given, it has a
            third argument, J(theta, phi, refine), where refine is a :data:`~eblvm_lit.scores.bilevel.Refinement` of
            the posterior.
        lower: The function G(theta, phi, i), with a scalar value, which uses the i-th draw of noise.
        optimizer: The optimizer of the lower level.
        state: The present state of the lower level's optimizer.
        lr: The present learning rate of the lower level's optimizer.
        lower_gradient: A function of (theta, phi, i) that returns the direction of the lower steps, if a part of phi
            counts as constant in G; None if the direction is the gradient of G in phi.
        information: A function of (phi, w) that returns the Fisher information of q(h|v; phi), averaged over the
            minibatch, times w.
        mean: A function that maps named tensors, which are means over this process' examples, to their means over the
            whole minibatch; None if this process has all examples.
        energy: The model, for a hypergradient that refines q(h|v) with it.
        posterior: The posterior q, for a hypergradient that refines q.
        latent_noise: The noise of the ``n_latents`` latents of each v that the hypergradient draws, shape
            (n_latents, B, H).
    """

    upper: Callable[..., Tensor]
    lower: Callable[[Params, Params, int], Tensor]
    optimizer: Optimizer
    state: State
    lr: Tensor | float
    lower_gradient: Callable[[Params, Params, int], Params] | None = None
    information: Callable[[Params, Params], Params] | None = None
    mean: Callable[[Params], Params] | None = None
    energy: Energy | None = None
    posterior: Posterior | None = None
    latent_noise: Tensor | None = None

    def whole(self, tensors: Params) -> Params:
        """Convert means over this process' examples to means over the whole minibatch."""
        return tensors if self.mean is None else self.mean(tensors)


class LowerLevel(NamedTuple):
    """The components of the lower level, with which a hypergradient must be compatible.

    Attributes:
        energy: The model.
        posterior: The posterior q.
        divergence: The divergence that G estimates.
        optimizer: The optimizer that minimises G.
    """

    energy: Energy
    posterior: Posterior
    divergence: Divergence
    optimizer: Optimizer


class HypergradientStep(NamedTuple):
    """The result of a hypergradient in one iteration.

    Attributes:
        value: The value of J, which is logged.
        gradient: The estimate of dJ(theta, phi*(theta))/dtheta.
        state: The tensors that the hypergradient keeps for the next iteration.
    """

    value: Tensor
    gradient: Params
    state: dict[str, Tensor]


class Hypergradient(ABC):
    """An estimator of dJ(theta, phi*(theta))/dtheta at the current phi. The estimator does not change phi.

    Attributes:
        n_draws: The number of draws of lower-level noise that the estimator uses.
        n_latents: The number of latents that the estimator draws for each v.
        lr_ahead: The number of iterations by which the estimator's steps run ahead in the lower level's learning-rate
            schedule: 0 for the rate of the current iteration, and 1 for the rate of the next iteration.
    """

    n_draws: int
    n_latents = 0
    lr_ahead = 0

    @property
    def title(self) -> str:
        """Return a short name of the hypergradient, for the first line that a run prints."""
        return type(self).__name__

    def check(self, lower: LowerLevel) -> None:  # noqa: B027 - most hypergradients fit every lower level
        """Raise a ConfigError if this hypergradient cannot be used with the lower level.

        Raises:
            ConfigError: If the hypergradient cannot be used. The message says what can be used instead.
        """

    def init_state(self, phi: Params) -> dict[str, Tensor]:
        """Return the initial values of the tensors that are kept between iterations and stored in checkpoints."""
        return {}

    def memory_hints(self) -> list[str]:
        """Return advice on how to reduce the memory of the hypergradient, ordered from most to least effective."""
        return []

    @abstractmethod
    def __call__(
        self, problem: BilevelProblem, theta: Params, phi: Params, state: Mapping[str, Tensor] | None = None
    ) -> HypergradientStep:
        """Compute the upper loss J, and estimate its hypergradient with respect to theta.

        Args:
            problem: The functions J and G, and the optimizer that minimises G.
            theta: The parameters of the model.
            phi: The parameters of the posterior.
            state: The tensors that the previous iteration kept, see :meth:`init_state`. A hypergradient that keeps
                nothing does not need them.
        """


def adam_preconditioner(problem: BilevelProblem) -> LinearMap:
    r"""Return a function that divides a vector by Adam's denominator :math:`D = \sqrt{\hat s} + \varepsilon`.

    :math:`\hat s` are the current bias-corrected second moments of the lower level's Adam.
    """
    root = cast(Adam, problem.optimizer).root(problem.state)
    return lambda w: tree_map(torch.div, w, root)


def needs_adam(lower: LowerLevel) -> None:
    """Raise a ConfigError if the lower-level optimizer has no second moments.

    Raises:
        ConfigError: If the optimizer is not Adam.
    """
    if not isinstance(lower.optimizer, Adam):
        raise ConfigError(
            f"The hypergradient needs Adam's second moments of phi, and {type(lower.optimizer).__name__} has none: use "
            "optimizer=adam or, if the hypergradient has a preconditioner, preconditioner=none."
        )
