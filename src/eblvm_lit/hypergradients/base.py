"""The contract of hypergradients, and the bi-level problem that they differentiate."""

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
    r"""min over theta of J(theta, phi*(theta)), phi*(theta) = argmin over phi of G(theta, phi).

    J and G are means over this process' rows of the minibatch.

    Attributes:
        upper: J(theta, phi), a scalar; J(theta, phi, refine), of a refined posterior (a
            :data:`~eblvm_lit.scores.bilevel.Refinement`), where ``energy`` and ``posterior`` are given.
        lower: G(theta, phi, i), a scalar, with the i-th draw of noise.
        optimizer: The rule of the lower level.
        state: Its live state.
        lr: Its learning rate now.
        lower_gradient: (theta, phi, i) -> the direction of the lower steps, where a part of phi is fixed in G;
            None for the gradient of G.
        information: (phi, w) -> the Fisher information of q(h|v; phi), averaged over the minibatch, times w.
        mean: Named tensors that are means over this process' rows -> their means over the whole minibatch; None where
            this process holds all rows.
        energy: The model, for a hypergradient that refines q(h|v) with it.
        posterior: q.
        latent_noise: Noise of the hypergradient's ``n_latents`` latents of each v, shape (n_latents, B, H).
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
        """Means over the whole minibatch, of means over this process' rows."""
        return tensors if self.mean is None else self.mean(tensors)


class LowerLevel(NamedTuple):
    """What fits phi: what a hypergradient may demand something of.

    Attributes:
        energy: The model.
        posterior: q.
        divergence: What G estimates.
        optimizer: The rule that descends G.
    """

    energy: Energy
    posterior: Posterior
    divergence: Divergence
    optimizer: Optimizer


class HypergradientStep(NamedTuple):
    """What a hypergradient gives in one iteration.

    Attributes:
        value: J, for the record.
        gradient: The estimate of dJ(theta, phi*(theta))/dtheta.
        state: What it keeps for the next iteration.
    """

    value: Tensor
    gradient: Params
    state: dict[str, Tensor]


class Hypergradient(ABC):
    """An estimate of dJ(theta, phi*(theta))/dtheta at the live phi, which does not move.

    Attributes:
        n_draws: How many draws of lower-level noise it uses.
        n_latents: How many latents of each v it draws.
        lr_ahead: Its steps have the lower level's learning rate of so many iterations later.
    """

    n_draws: int
    n_latents = 0
    lr_ahead = 0

    @property
    def title(self) -> str:
        """What it is in a few words, for the first line of a run."""
        return type(self).__name__

    def check(self, lower: LowerLevel) -> None:  # noqa: B027 - most fit every lower level
        """Refuse a lower level that this hypergradient does not fit.

        Raises:
            ConfigError: Saying what fits.
        """

    def init_state(self, phi: Params) -> dict[str, Tensor]:
        """What it keeps from one iteration to the next, before the first one; saved in checkpoints."""
        return {}

    def memory_hints(self) -> list[str]:
        """What makes it need less memory."""
        return []

    @abstractmethod
    def __call__(
        self, problem: BilevelProblem, theta: Params, phi: Params, state: Mapping[str, Tensor] | None = None
    ) -> HypergradientStep:
        """J and its estimated hypergradient with respect to theta.

        Args:
            problem: J, G, and what descends G.
            theta: Parameters of the model.
            phi: Parameters of the posterior.
            state: Of the iteration before, see :meth:`init_state`; one that keeps nothing needs none.
        """


def adam_preconditioner(problem: BilevelProblem) -> LinearMap:
    r"""Division by :math:`D = \sqrt{\hat s} + \varepsilon` of the lower level's Adam, with its live second moments."""
    root = cast(Adam, problem.optimizer).root(problem.state)
    return lambda w: tree_map(torch.div, w, root)


def needs_adam(lower: LowerLevel) -> None:
    """Refuse a lower optimizer that has no second moments.

    Raises:
        ConfigError: In that case.
    """
    if not isinstance(lower.optimizer, Adam):
        raise ConfigError(
            f"The hypergradient reads the second moments of phi's Adam, and {type(lower.optimizer).__name__} has none: "
            "use optimizer=adam, or preconditioner=none where there is one."
        )
