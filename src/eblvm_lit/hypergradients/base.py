"""The contract of hypergradients, and the bi-level problem that they differentiate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from eblvm_lit.core.functional import Params
from eblvm_lit.divergences.base import Divergence
from eblvm_lit.optimizers.base import Optimizer, State

__all__ = ["BilevelProblem", "Hypergradient"]


class BilevelProblem(NamedTuple):
    r"""min over theta of J(theta, phi*(theta)), phi*(theta) = argmin over phi of G(theta, phi).

    J and G are means over this process' rows of the minibatch.

    Attributes:
        upper: J(theta, phi), a scalar.
        lower: G(theta, phi, i), a scalar, with the i-th draw of noise.
        optimizer: The rule of the lower level.
        state: Its live state.
        lr: Its learning rate now.
        lower_gradient: (theta, phi, i) -> the direction of the lower steps, where a part of phi is held fixed in G;
            None for the gradient of G.
        information: (phi, w) -> the Fisher information of q(h|v; phi), averaged over the minibatch, times w.
        mean: Named tensors that are means over this process' rows -> their means over the whole minibatch; None where
            this process holds all rows.
    """

    upper: Callable[[Params, Params], Tensor]
    lower: Callable[[Params, Params, int], Tensor]
    optimizer: Optimizer
    state: State
    lr: Tensor | float
    lower_gradient: Callable[[Params, Params, int], Params] | None = None
    information: Callable[[Params, Params], Params] | None = None
    mean: Callable[[Params], Params] | None = None


class Hypergradient(ABC):
    """An estimate of dJ(theta, phi*(theta))/dtheta at the live phi, which does not move.

    Attributes:
        n_draws: How many draws of lower-level noise it uses.
        lr_ahead: Its steps have the lower level's learning rate of so many iterations later.
    """

    n_draws: int
    lr_ahead = 0

    @property
    def title(self) -> str:
        """What it is in a few words, for the first screen of a run."""
        return type(self).__name__

    def check(self, divergence: Divergence) -> None:  # noqa: B027 - most fit every divergence
        """Refuse a lower level this hypergradient does not fit."""

    def memory_hints(self) -> list[str]:
        """What makes it need less memory."""
        return []

    @abstractmethod
    def __call__(self, problem: BilevelProblem, theta: Params, phi: Params) -> tuple[Tensor, Params]:
        """The value of J and its (hyper)gradient with respect to theta."""
