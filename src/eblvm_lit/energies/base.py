"""The base classes of energies: E(v, h) alone, with F(v), with conditionals, and energies of v alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from eblvm_lit.core.functional import Params, SharedFeatures, bind, divergence, grad, share_features

__all__ = [
    "ConditionalEnergy",
    "Energy",
    "EnergyAt",
    "FeatureEnergy",
    "LatentEnergy",
    "MarginalEnergy",
    "VisibleEnergy",
    "is_movable",
]

LatentEnergy = Callable[[Tensor], Tensor]  # E(v, .) at given v: maps h (*L, B, H) to E (*L, B)
EnergyAt = Callable[[Tensor], LatentEnergy]  # maps v (B, *event) to E(v, .)


class Energy(nn.Module, ABC):
    r"""A joint energy, :math:`p(v, h) \propto \exp(-E(v, h; \theta))`.

    Attributes:
        event_shape: Shape of one v.
        h_dim: Number of latents.
        continuous: Whether h is real; false for binary latents.
        shared_features: Features that came with the parameters of this view; see :meth:`share_features`.
    """

    event_shape: tuple[int, ...]
    h_dim: int
    continuous: bool
    shared_features: SharedFeatures | None = None

    @abstractmethod
    def energy(self, v: Tensor, h: Tensor) -> Tensor:
        """E(v, h), shape (*L, B), of v (B, *event) and h (*L, B, H)."""

    def at(self, v: Tensor) -> LatentEnergy:
        """E(v, .) as a function of h alone, for those who evaluate it, or its gradient in h, many times at one v.

        What E needs of v only, such as the features of a network, is computed here, once. A gradient in v goes
        through it if v is differentiated outside of this call, too.

        Returns:
            Maps h (*L, B, H) to E (*L, B).
        """
        return partial(self.energy, v)

    def gradient(self, fn: Callable[[EnergyAt, Tensor], Tensor], v: Tensor) -> Tensor:
        """The gradient in v (B, *event) of fn(at, v), a number, of which at(v) is E(v, .).

        Example:
            >>> from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
            >>> energy, v, h = GaussianLatentModel(v_dim=2, h_dim=3), torch.zeros(5, 2), torch.zeros(5, 3)
            >>> energy.gradient(lambda at, v: at(v)(h).sum() + v.sum(), v).shape
            torch.Size([5, 2])
        """
        return grad(partial(fn, self.at))(v)

    def slope(self, fn: Callable[[LatentEnergy], Tensor], v: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """fn(E(v, .)), and its derivative as v moves along z (B, *event), in one forward-mode pass.

        Example:
            >>> from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
            >>> energy, v, h = GaussianLatentModel(v_dim=2, h_dim=3), torch.zeros(5, 2), torch.zeros(5, 3)
            >>> [x.shape for x in energy.slope(lambda energy: energy(h), v, v)]
            [torch.Size([5]), torch.Size([5])]
        """
        return torch.func.jvp(lambda x: fn(self.at(x)), (v,), (z,))[:2]

    def share_features(self, theta: Params, v: Tensor) -> Params:
        """theta with the features of v, where the energy has a network of v: computed once for all that follows.

        E(v, .) and its gradients in v and in theta, of this energy bound to the result, use these features.

        Args:
            theta: Parameters.
            v: Points, shape (B, *event); features are those of this tensor, and not of its copies.
        """
        return theta

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


class FeatureEnergy(Energy):
    """An energy that depends on v through the features of a network alone, which are most of its cost."""

    @abstractmethod
    def features(self, v: Tensor) -> Tensor:
        """What E needs of v, shape (B, n), of v (B, *event)."""

    @abstractmethod
    def at_features(self, features: Tensor) -> LatentEnergy:
        """E(v, .), which maps h (*L, B, H) to E (*L, B), of the features of v (B, n)."""

    def energy(self, v: Tensor, h: Tensor) -> Tensor:
        """E(v, h), shape (*L, B), of v (B, *event) and h (*L, B, H)."""
        return self.at(v)(h)

    def at(self, v: Tensor) -> LatentEnergy:
        """E(v, .), with the features of v computed once; see :meth:`Energy.at`."""
        shared = self._features_of(v)
        return self.at_features(self.features(v) if shared is None else shared.value)

    def share_features(self, theta: Params, v: Tensor) -> Params:
        """theta with the features of v, see :meth:`Energy.share_features`; by plain autograd alone."""
        return share_features(lambda theta, v: bind(self, theta).features(v), theta, v)

    def _features_of(self, v: Tensor) -> SharedFeatures | None:
        """The shared features, if they are those of v."""
        return self.shared_features if self.shared_features is not None and v is self.shared_features.points else None

    def gradient(self, fn: Callable[[EnergyAt, Tensor], Tensor], v: Tensor) -> Tensor:
        """The gradient in v of fn(at, v), through the shared features where they are those of v."""
        shared = self._features_of(v)
        if shared is None:
            return super().gradient(fn, v)
        by_features, by_v = grad(lambda f, x: fn(lambda _: self.at_features(f), x), argnums=(0, 1))(shared.value, v)
        return shared.pull(by_features) + by_v

    def slope(self, fn: Callable[[LatentEnergy], Tensor], v: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """fn(E(v, .)) and its derivative along z, through the shared features where they are those of v."""
        shared = self._features_of(v)
        if shared is None:
            return super().slope(fn, v, z)
        return torch.func.jvp(lambda f: fn(self.at_features(f)), (shared.value,), (shared.push(z),))[:2]


class MarginalEnergy(Energy):
    r"""An energy whose free energy :math:`F(v) = -\log \int e^{-E(v, h)} dh` has a closed form."""

    @abstractmethod
    def free_energy(self, v: Tensor) -> Tensor:
        """F(v), shape (B,), of v (B, *event)."""

    def ranking_energy(self, v: Tensor) -> Tensor:
        """Numbers that increase with F(v), shape (B,), for those who need the order of examples alone.

        F itself by default. An energy whose last function saturates gives what comes before it, which rounding does
        not make equal.
        """
        return self.free_energy(v)

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


def is_movable(energy: object) -> bool:
    """Whether v, or v and h together, can move along gradients: F(v) is tractable, or the latents are real.

    Example:
        >>> is_movable(None)
        False
    """
    return isinstance(energy, MarginalEnergy) or (isinstance(energy, Energy) and energy.continuous)


class VisibleEnergy(MarginalEnergy):
    r"""An energy without latents, :math:`p(v) \propto \exp(-F(v))`: methods that need F(v) alone train it.

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
