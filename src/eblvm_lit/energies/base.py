"""What every energy offers, and what those with a tractable marginal offer beside it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from eblvm_lit.core.functional import OnePass, Params, bind, divergence, grad, one_pass

__all__ = ["ConditionalEnergy", "Energy", "EnergyAt", "LatentEnergy", "MarginalEnergy", "VisibleEnergy"]

LatentEnergy = Callable[[Tensor], Tensor]  # E(v, .) at given v: maps h (*L, B, H) to E (*L, B)
EnergyAt = Callable[[Tensor], LatentEnergy]


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
    passed: OnePass | None = None  # the pass of the features that a view of :meth:`bound` knows

    @abstractmethod
    def energy(self, v: Tensor, h: Tensor) -> Tensor:
        """E(v, h), shape (*L, B), of v (B, *event) and h (*L, B, H)."""

    def features(self, v: Tensor) -> Tensor:
        """What E needs of v (B, *event), such as the features of a network; v itself if there is nothing to compute."""
        return v

    def at_features(self, features: Tensor) -> LatentEnergy:
        """E(v, .), which maps h (*L, B, H) to E (*L, B), of the :meth:`features` of v."""
        return lambda h: self.energy(features, h)

    def at(self, v: Tensor) -> LatentEnergy:
        """E(v, .) as a function of h alone, for those who evaluate it, or its gradient in h, many times at one v.

        What E needs of v only, such as the features of a network, is computed here, once. A gradient in v goes
        through it if v is differentiated outside of this call, too.

        Returns:
            Maps h (*L, B, H) to E (*L, B).
        """
        known = self.passed is not None and v is self.passed.points
        return self.at_features(self.passed.value if known else self.features(v))

    def one_pass(self, theta: Params, v: Tensor) -> Params:
        """theta, with the features of v: :meth:`bound` to it, E(v, .) and its gradients make no other pass.

        By plain autograd; elsewhere theta as it is, see :func:`~eblvm_lit.core.functional.one_pass`.

        Args:
            theta: Parameters.
            v: Points, shape (B, *event). This tensor is known, not its copies.
        """
        return one_pass(lambda theta, v: bind(self, theta).features(v), theta, v)

    def bound(self, theta: Params) -> Energy:
        """This energy as a function of theta, and of the pass that comes with it; see :meth:`one_pass`."""
        view = bind(self, theta)
        view.passed = theta if isinstance(theta, OnePass) else None
        return view

    def gradient(self, fn: Callable[[EnergyAt, Tensor], Tensor], v: Tensor) -> Tensor:
        """The gradient in v (B, *event) of fn(at, v), a number, of which at(v) is E(v, .).

        Example:
            >>> from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
            >>> energy, v, h = GaussianLatentModel(v_dim=2, h_dim=3), torch.zeros(5, 2), torch.zeros(5, 3)
            >>> energy.gradient(lambda at, v: at(v)(h).sum() + v.sum(), v).shape
            torch.Size([5, 2])
        """
        passed = self.passed
        if passed is None or v is not passed.points:
            return grad(lambda x: fn(self.at, x))(v)
        by_features, by_v = grad(lambda f, x: fn(lambda _: self.at_features(f), x), argnums=(0, 1))(passed.value, v)
        return passed.pull(by_features) + by_v

    def slope(self, fn: Callable[[LatentEnergy], Tensor], v: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """fn(E(v, .)), and its derivative as v moves along z (B, *event), in one forward-mode pass.

        Example:
            >>> from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
            >>> energy, v, h = GaussianLatentModel(v_dim=2, h_dim=3), torch.zeros(5, 2), torch.zeros(5, 3)
            >>> [x.shape for x in energy.slope(lambda energy: energy(h), v, v)]
            [torch.Size([5]), torch.Size([5])]
        """
        passed = self.passed
        if passed is None or v is not passed.points:
            return torch.func.jvp(lambda x: fn(self.at(x)), (v,), (z,))[:2]
        return torch.func.jvp(lambda f: fn(self.at_features(f)), (passed.value,), (passed.push(z),))[:2]

    def memory_hints(self) -> list[str]:
        """What makes its gradients need less memory."""
        return []

    def extra_repr(self) -> str:
        """The sizes, for ``print``.

        Example:
            >>> from eblvm_lit.energies.grbm import GRBM
            >>> GRBM(v_dim=2, h_dim=3)
            GRBM(event_shape=(2,), h_dim=3)
        """
        return f"event_shape={tuple(self.event_shape)}, h_dim={self.h_dim}"

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


class ConditionalEnergy(MarginalEnergy):
    """An energy whose p(h|v) and p(v|h) can be drawn from, with noise that is drawn outside."""

    @abstractmethod
    def latent_mean(self, v: Tensor) -> Tensor:
        """E[h|v], shape (B, H), of v (B, *event)."""

    @abstractmethod
    def visible_mean(self, h: Tensor) -> Tensor:
        """E[v|h], shape (*L, B, *event), of h (*L, B, H)."""

    @abstractmethod
    def visible_std(self) -> Tensor:
        """Standard deviation of p(v|h), which is normal, shape (*event)."""

    @abstractmethod
    def latent_noise(self, shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
        """Noise for :meth:`draw_latent`, shape (*shape, H), of like's type and device."""

    @abstractmethod
    def draw_latent(self, v: Tensor, noise: Tensor) -> Tensor:
        """h ~ p(h|v), shape (*L, B, H), of v (B, *event) and noise (*L, B, H)."""

    def visible_noise(self, shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
        """Noise for :meth:`draw_visible`, shape (*shape, *event), of like's type and device."""
        return torch.randn((*shape, *self.event_shape), generator=generator, dtype=like.dtype, device=like.device)

    def draw_visible(self, h: Tensor, noise: Tensor) -> Tensor:
        """v ~ p(v|h), shape (*L, B, *event), of h (*L, B, H) and noise (*L, B, *event)."""
        return self.visible_mean(h) + self.visible_std() * noise

    def sample_latent(self, v: Tensor, generator: torch.Generator) -> Tensor:
        """h ~ p(h|v), shape (B, H)."""
        return self.draw_latent(v, self.latent_noise((len(v),), v, generator))

    def sample_visible(self, h: Tensor, generator: torch.Generator) -> Tensor:
        """v ~ p(v|h), shape (*L, B, *event)."""
        return self.draw_visible(h, self.visible_noise(h.shape[:-1], h, generator))


class VisibleEnergy(MarginalEnergy):
    r"""An energy without latents, :math:`p(v) \propto \exp(-F(v))`: methods of a marginal serve it as they are.

    It counts as an energy of zero latents, E(v, h) = F(v).
    """

    h_dim = 0
    continuous = True

    def energy(self, v: Tensor, h: Tensor) -> Tensor:
        """F(v), shape (*L, B), whatever h (*L, B, 0)."""
        return self.free_energy(v).expand(h.shape[:-1])

    def forward(self, v: Tensor) -> Tensor:
        """F(v), shape (B,)."""
        return self.free_energy(v)
