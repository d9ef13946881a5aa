"""The base class of the chains of contrastive divergence's negative phase."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from eblvm_lit.energies.base import Energy, MarginalEnergy

__all__ = ["NegativePhase", "State", "energy_of"]

State = dict[str, Tensor]


def energy_of(energy: Energy, state: State) -> Tensor:
    """The energy that a chain samples: F(v) where it is tractable, else E(v, h), shape (B,).

    Args:
        energy: The model.
        state: ``v`` (B, *event) and, unless the model has a free energy, ``h`` (B, H).

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> energy_of(GRBM(v_dim=2, h_dim=3), {"v": torch.zeros(5, 2)}).shape
        torch.Size([5])
    """
    if isinstance(energy, MarginalEnergy):
        return energy.free_energy(state["v"])
    return energy.energy(state["v"], state["h"])


class NegativePhase(ABC):
    """A positive phase, the negative phase that starts from it, and the state that persistent chains keep.

    Attributes:
        n_steps: k, the steps of a negative phase.
        keeps_latents: Whether :meth:`latents` moves the latents it is given; false where it draws new ones.
    """

    n_steps: int
    keeps_latents: bool

    @abstractmethod
    def check(self, energy: Energy) -> None:
        """Refuse an energy this chain cannot sample.

        Raises:
            ConfigError: Saying what can.
        """

    @abstractmethod
    def shapes(self, energy: Energy) -> dict[str, tuple[int, ...]]:
        """The variables that persistent chains keep, by name: the shape of one row."""

    @abstractmethod
    def start_noise(self, energy: Energy, v: Tensor, generator: torch.Generator) -> Any:
        """Noise for :meth:`start` at v, shape (B, *event)."""

    @abstractmethod
    def start(self, energy: Energy, v: Tensor, noise: Any) -> State:
        """The positive phase: v, and latents that are drawn from p(h|v), exactly or approximately."""

    def latents(self, energy: Energy, v: Tensor, h: Tensor, noise: Any) -> Tensor:
        """h (B, H) after a positive phase's steps towards p(h|v) from h, given the noise of :meth:`start`.

        Asked of chains with :attr:`keeps_latents` alone.
        """
        raise NotImplementedError

    def jointly(self) -> NegativePhase:
        """This chain on (v, h), even where F is tractable."""
        return self

    def weighted(self) -> NegativePhase:
        """This chain for walkers, which keep variables that :func:`energy_of` is a function of."""
        return self

    @abstractmethod
    def noise(self, energy: Energy, n: int, like: Tensor, generator: torch.Generator) -> Any:
        """Noise for :meth:`run` of n chains, of like's type and device."""

    def begin(self, positive: State, noise: Any) -> State:
        """Where new chains start, given the positive phase and the noise of :meth:`run`."""
        return positive

    @abstractmethod
    def run(self, energy: Energy, state: State, noise: Any) -> State:
        """The negative phase: where the chains are after k steps; nothing is differentiated through them."""

    @abstractmethod
    def weighted_run(self, energy: Energy, state: State, noise: Any) -> tuple[State, Tensor]:
        r""":meth:`run` of walkers, and the log-ratio of the densities of their steps back and forth, shape (B,).

        .. math:: \log \frac{T(x_k \to x_0)}{T(x_0 \to x_k)}

        It is F(x_k) - F(x_0) for a chain that leaves p invariant.
        """

    @abstractmethod
    def reconstruct(self, energy: Energy, state: State, generator: torch.Generator | None = None) -> Tensor:
        """v after one step from a positive phase: its mean or, with a generator, a draw; shape (B, *event)."""
