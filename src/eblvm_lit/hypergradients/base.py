"""What every hypergradient offers."""

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

    Where processes share a minibatch, J and G are means over the rows of this one.

    Attributes:
        upper: J(theta, phi), a scalar.
        lower: G(theta, phi, i), a scalar, with the i-th draw of noise.
        optimizer: The rule of the lower level.
        state: Its live state.
        lr: Its learning rate now.
        lower_gradient: (theta, phi, i) -> what the lower level descends, where that is no gradient of G alone, as where
            it holds a part of phi fixed; None for G's.
        information: (phi, w) -> the Fisher information of q(h|v; phi), averaged over the minibatch, times w.
    """

    upper: Callable[[Params, Params], Tensor]
    lower: Callable[[Params, Params, int], Tensor]
    optimizer: Optimizer
    state: State
    lr: Tensor | float
    lower_gradient: Callable[[Params, Params, int], Params] | None = None
    information: Callable[[Params, Params], Params] | None = None


class Hypergradient(ABC):
    """How dJ(theta, phi*(theta))/dtheta is had at the live phi, which it leaves as it is.

    Attributes:
        n_draws: How many draws of lower-level noise it uses.
    """

    n_draws: int

    def check(self, divergence: Divergence) -> None:  # noqa: B027 - most fit every divergence
        """Refuse a lower level this hypergradient does not fit."""

    def memory_hints(self) -> list[str]:
        """What makes it need less memory."""
        return []

    @abstractmethod
    def __call__(self, problem: BilevelProblem, theta: Params, phi: Params) -> tuple[Tensor, Params]:
        """The value of J and its (hyper)gradient with respect to theta."""
