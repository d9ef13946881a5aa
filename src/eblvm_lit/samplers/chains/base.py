"""The base class of the chains that run in the negative phase of contrastive divergence."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from eblvm_lit.energies.base import Energy, MarginalEnergy

__all__ = ["NegativePhase", "State", "energy_of"]

State = dict[str, Tensor]


def energy_of(energy: Energy, state: State) -> Tensor:
    """Compute the energy of each chain, shape (B,): the free energy F(v) if it is tractable, else E(v, h).

    Args:
        energy: The joint energy.
        state: The variables ``v`` (B, *event) and, unless the model has a free energy, ``h`` (B, H).

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> energy_of(GRBM(v_dim=2, h_dim=3), {"v": torch.zeros(5, 2)}).shape
        torch.Size([5])
    """
    if isinstance(energy, MarginalEnergy):
        return energy.free_energy(state["v"])
    return energy.energy(state["v"], state["h"])


class NegativePhase(ABC):
    """The base class of the chains used in contrastive divergence.

    It defines a positive phase, the negative phase that starts from it, and the state that persistent chains keep.

    Attributes:
        n_steps: The number k of steps of a negative phase.
        keeps_latents: Whether the positive phase can continue from given latents by :meth:`latents`; False for chains
            that draw new latents each time.
    """

    n_steps: int
    keeps_latents: bool

    @abstractmethod
    def check(self, energy: Energy) -> None:
        """Raise an error if this chain cannot sample the model with the given energy.

        Raises:
            ConfigError: With a message that names a chain that can.
        """

    @abstractmethod
    def shapes(self, energy: Energy) -> dict[str, tuple[int, ...]]:
        """Return a dict from the name of each variable that one persistent chain stores to its shape."""

    @abstractmethod
    def start_noise(self, energy: Energy, v: Tensor, generator: torch.Generator) -> Any:
        """Draw the noise that :meth:`start` needs for examples v (B, *event)."""

    @abstractmethod
    def start(self, energy: Energy, v: Tensor, noise: Any) -> State:
        """Run the positive phase, and return v with latents drawn from p(h|v), exactly or approximately."""

    def latents(self, energy: Energy, v: Tensor, h: Tensor, noise: Any) -> Tensor:
        """Update latents h (B, H) by the steps of the positive phase, with the noise that :meth:`start_noise` drew.

        The steps sample p(h|v). The method is called only for chains with :attr:`keeps_latents`.
        """
        raise NotImplementedError

    def jointly(self) -> NegativePhase:
        """Return a version of this chain that moves v and h jointly, even if the free energy is tractable."""
        return self

    def weighted(self) -> NegativePhase:
        """Return a version for weighted chains, which stores all variables that :func:`energy_of` needs."""
        return self

    @abstractmethod
    def noise(self, energy: Energy, n: int, like: Tensor, generator: torch.Generator) -> Any:
        """Draw the noise that :meth:`run` needs for n chains, with the dtype and device of ``like``."""

    def begin(self, positive: State, noise: Any) -> State:
        """Compute the initial state of new chains from the positive phase's state and the noise for :meth:`run`."""
        return positive

    @abstractmethod
    def run(self, energy: Energy, state: State, noise: Any) -> State:
        """Run the negative phase, and return the chains' state after k steps, detached."""

    @abstractmethod
    def weighted_run(self, energy: Energy, state: State, noise: Any) -> tuple[State, Tensor]:
        r"""Run weighted chains like :meth:`run`, and also return their log-ratios of transition densities, shape (B,).

        .. math:: \log \frac{T(x_k \to x_0)}{T(x_0 \to x_k)}

        It is the log density of the reverse transition minus that of the forward one, and equals F(x_k) - F(x_0) for a
        chain that leaves p invariant.
        """

    @abstractmethod
    def reconstruct(self, energy: Energy, state: State, generator: torch.Generator | None = None) -> Tensor:
        """Reconstruct v by one step of the chain from the state after the positive phase, shape (B, *event).

        Without a generator the result is the mean of v, and with a generator a draw.
        """
