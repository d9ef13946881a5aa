"""What every energy offers, and what those with a tractable marginal offer beside it."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from eblvm_lit.differentiation import divergence, grad

__all__ = ["Energy", "MarginalEnergy"]


class Energy(nn.Module, ABC):
    r"""A joint energy, :math:`p(v, h) \propto \exp(-E(v, h; \theta))`.

    Attributes:
        event_shape: Shape of one v.
        h_dim: Number of latents.
        continuous: Whether h is real; false for binary latents.
    """

    event_shape: tuple[int, ...]
    h_dim: int
    continuous: bool

    @abstractmethod
    def energy(self, v: Tensor, h: Tensor) -> Tensor:
        """E(v, h), shape (*L, B), of v (B, *event) and h (*L, B, H)."""

    def forward(self, v: Tensor, h: Tensor) -> Tensor:
        """The energy; see :meth:`energy`."""
        return self.energy(v, h)


class MarginalEnergy(Energy):
    r"""An energy whose free energy :math:`F(v) = -\log \int e^{-E(v, h)} dh` has a closed form."""

    @abstractmethod
    def free_energy(self, v: Tensor) -> Tensor:
        """F(v), shape (B,), of v (B, *event)."""

    def score(self, v: Tensor) -> Tensor:
        r"""The marginal score :math:`\nabla_v \log p(v) = -\nabla_v F(v)`, shape (B, *event)."""
        return -grad(lambda x: self.free_energy(x).sum())(v)

    def score_divergence(self, v: Tensor) -> Tensor:
        r"""Trace of the Hessian of log p, :math:`\nabla_v \cdot s(v)`, shape (B,)."""
        return divergence(self.score, v)
