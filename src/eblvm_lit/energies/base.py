"""The base classes of joint energies, with or without a free energy and conditionals, and of energies of v only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from eblvm_lit.core.functional import Params, SharedFeatures, bind, divergence, grad, share_features
from eblvm_lit.errors import ConfigError

__all__ = [
    "ConditionalEnergy",
    "Energy",
    "EnergyAt",
    "ExactLatentEnergy",
    "FeatureEnergy",
    "GibbsEnergy",
    "LatentEnergy",
    "LatentMeans",
    "MarginalEnergy",
    "VisibleEnergy",
    "is_movable",
    "refuse_bits",
]

LatentEnergy = Callable[[Tensor], Tensor]  # E(v, .) for given v: maps h (*L, B, H) to E (*L, B)
EnergyAt = Callable[[Tensor], LatentEnergy]  # maps v (B, *event) to E(v, .)


class Energy(nn.Module, ABC):
    r"""A joint energy E(v, h) of data v and latents h, with :math:`p(v, h) \propto \exp(-E(v, h; \theta))`.

    In all shapes B is the number of examples, ``*event`` is the shape of one v, H is the number of latents, and ``*L``
    stands for any number of leading axes, such as one of L particles for each v.

    Attributes:
        event_shape: The shape of one v.
        h_dim: The number of latents.
        continuous: Whether h is real; False for binary latents.
        binary_visible: Whether v consists of bits. Such a v has no score and cannot be moved by gradients.
        smooth: Whether the score has no jumps. Where it jumps, second derivatives of the energy miss a part of its
            divergence.
        n_enumerated: The number of binary units over whose states ``log_partition()`` sums; 0 for other energies, and
            for energies that limit this number themselves.
        shared_features: The precomputed features of v if this module is bound to the parameters that
            :meth:`share_features` returned, else None.
    """

    event_shape: tuple[int, ...]
    h_dim: int
    continuous: bool
    binary_visible: bool = False
    smooth: bool = True
    n_enumerated: int = 0
    shared_features: SharedFeatures | None = None

    @abstractmethod
    def energy(self, v: Tensor, h: Tensor) -> Tensor:
        """Compute E(v, h), shape (*L, B), for v (B, *event) and h (*L, B, H)."""

    def at(self, v: Tensor) -> LatentEnergy:
        """Return E(v, .) as a function of h, for repeated evaluation at the same v.

        Whatever depends only on v, such as the features of a network, is computed here once. Gradients with respect
        to v pass through these quantities if the differentiated function includes this call.

        Returns:
            A function that maps h (*L, B, H) to E (*L, B).
        """
        return partial(self.energy, v)

    def gradient(self, fn: Callable[[EnergyAt, Tensor], Tensor], v: Tensor) -> Tensor:
        """Compute the gradient of a function fn(at, v) with respect to v (B, *event).

        fn returns a scalar. Its argument ``at`` is a function: at(v) is E(v, .), the energy as a function of h.

        Example:
            >>> from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
            >>> energy, v, h = GaussianLatentModel(v_dim=2, h_dim=3), torch.zeros(5, 2), torch.zeros(5, 3)
            >>> energy.gradient(lambda at, v: at(v)(h).sum() + v.sum(), v).shape
            torch.Size([5, 2])
        """
        return grad(partial(fn, self.at))(v)

    def slope(self, fn: Callable[[LatentEnergy], Tensor], v: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """Compute a function fn of E(v, .), and its derivative with respect to v in the direction z (B, *event).

        Both are computed in one pass, by forward-mode differentiation.

        Example:
            >>> from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
            >>> energy, v, h = GaussianLatentModel(v_dim=2, h_dim=3), torch.zeros(5, 2), torch.zeros(5, 3)
            >>> [x.shape for x in energy.slope(lambda energy: energy(h), v, v)]
            [torch.Size([5]), torch.Size([5])]
        """
        return torch.func.jvp(lambda x: fn(self.at(x)), (v,), (z,))[:2]

    def share_features(self, theta: Params, v: Tensor) -> Params:
        """Compute the features of v once, and return them together with the parameters theta.

        An energy without a network that maps v to features returns theta unchanged. An energy that is bound to the
        result uses the stored features for E(v, .) and for its gradients with respect to v and theta.

        Args:
            theta: The energy's parameters.
            v: Examples, shape (B, *event). The features are used only for this very tensor object, not for a copy.
        """
        return theta

    def extra_repr(self) -> str:
        """Return the sizes of v and h for the module's printed representation.

        Example:
            >>> from eblvm_lit.energies.grbm import GRBM
            >>> GRBM(v_dim=2, h_dim=3)
            GRBM(event_shape=(2,), h_dim=3)
        """
        return f"event_shape={tuple(self.event_shape)}, h_dim={self.h_dim}"

    def forward(self, v: Tensor, h: Tensor) -> Tensor:
        """Compute the energy E(v, h); see :meth:`energy`."""
        return self.energy(v, h)


class FeatureEnergy(Energy):
    """An energy that depends on v only through a network's features, whose computation dominates the cost."""

    @abstractmethod
    def features(self, v: Tensor) -> Tensor:
        """Compute the features of v on which E depends, shape (B, n), for v (B, *event)."""

    @abstractmethod
    def at_features(self, features: Tensor) -> LatentEnergy:
        """Return the function E(v, .), which maps h (*L, B, H) to energies (*L, B), from the features (B, n) of v."""

    def energy(self, v: Tensor, h: Tensor) -> Tensor:
        """Compute E(v, h), shape (*L, B), for v (B, *event) and h (*L, B, H)."""
        return self.at(v)(h)

    def at(self, v: Tensor) -> LatentEnergy:
        """Return E(v, .) with the features of v computed once; see :meth:`Energy.at`."""
        shared = self._features_of(v)
        return self.at_features(self.features(v) if shared is None else shared.value)

    def share_features(self, theta: Params, v: Tensor) -> Params:
        """Return theta with the features of v, which are computed once; see :meth:`Energy.share_features`.

        Under ``torch.func`` or ``torch.compile`` the result is theta itself, without features.
        """
        return share_features(lambda theta, v: bind(self, theta).features(v), theta, v)

    def _features_of(self, v: Tensor) -> SharedFeatures | None:
        """Return the shared features if they were computed from this tensor v, else None."""
        return self.shared_features if self.shared_features is not None and v is self.shared_features.points else None

    def gradient(self, fn: Callable[[EnergyAt, Tensor], Tensor], v: Tensor) -> Tensor:
        """Compute the gradient as :meth:`Energy.gradient` does, but reuse shared features of v if there are any."""
        shared = self._features_of(v)
        if shared is None:
            return super().gradient(fn, v)
        by_features, by_v = grad(lambda f, x: fn(lambda _: self.at_features(f), x), argnums=(0, 1))(shared.value, v)
        return shared.pull(by_features) + by_v

    def slope(self, fn: Callable[[LatentEnergy], Tensor], v: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the results of :meth:`Energy.slope`, but reuse shared features of v if there are any."""
        shared = self._features_of(v)
        if shared is None:
            return super().slope(fn, v, z)
        return torch.func.jvp(lambda f: fn(self.at_features(f)), (shared.value,), (shared.push(z),))[:2]


class MarginalEnergy(Energy):
    r"""An energy whose free energy :math:`F(v) = -\log \int e^{-E(v, h)} dh` has a closed form."""

    @abstractmethod
    def free_energy(self, v: Tensor) -> Tensor:
        """Compute the free energy F(v), shape (B,), for v (B, *event)."""

    def ranking_energy(self, v: Tensor) -> Tensor:
        """Compute a value for ranking examples, shape (B,), which increases with the free energy F(v).

        By default it is F itself. An energy whose output function saturates returns the input of that function
        instead, because rounding makes saturated outputs equal.
        """
        return self.free_energy(v)

    def score(self, v: Tensor) -> Tensor:
        r"""Compute the marginal score :math:`\nabla_v \log p(v) = -\nabla_v F(v)`, shape (B, *event)."""
        return -grad(lambda x: self.free_energy(x).sum())(v)

    def score_divergence(self, v: Tensor) -> Tensor:
        r"""Compute the divergence of the marginal score s(v), shape (B,).

        It is :math:`\nabla_v \cdot s(v)`, the trace of the Hessian of log p(v).
        """
        return divergence(self.score, v)


class ExactLatentEnergy(MarginalEnergy):
    """An energy with a closed form of the free energy and of the posterior mean E[h|v]."""

    @abstractmethod
    def latent_mean(self, v: Tensor) -> Tensor:
        """Compute the posterior mean E[h|v], shape (B, H), for v (B, *event)."""


class LatentMeans(nn.Module):
    """An encoder that maps v to the exact posterior mean E[h|v] of an energy, and shares the energy's parameters.

    Args:
        energy: The energy.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> LatentMeans(GRBM(v_dim=2, h_dim=3))(torch.zeros(5, 2)).shape
        torch.Size([5, 3])
    """

    def __init__(self, energy: ExactLatentEnergy | GibbsEnergy) -> None:
        super().__init__()
        self.h_dim = energy.h_dim
        self.energy = energy

    def forward(self, v: Tensor) -> Tensor:
        """Compute E[h|v], shape (B, H), for v (B, *event)."""
        return self.energy.latent_mean(v)


class GibbsEnergy(Energy):
    """An energy for block Gibbs sampling: p(v|h) can be sampled exactly, and h can be moved given v.

    All noise is drawn by the caller.
    """

    @abstractmethod
    def latent_mean(self, v: Tensor) -> Tensor:
        """Compute the posterior mean E[h|v], exactly or approximately, shape (B, H), for v (B, *event)."""

    @abstractmethod
    def visible_mean(self, h: Tensor) -> Tensor:
        """Compute the conditional mean E[v|h], shape (*L, B, *event), for h (*L, B, H)."""

    @abstractmethod
    def latent_noise(self, shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
        """Draw the noise for :meth:`move_latent`, shape (*shape, H), with the dtype and device of ``like``."""

    def start_latent(self, v: Tensor, noise: Tensor) -> Tensor:
        """Compute the latents of the positive phase of contrastive divergence, shape (B, H), for v (B, *event).

        By default they are the posterior mean, which is a mean-field approximation where p(h|v) cannot be sampled.
        """
        return self.latent_mean(v)

    @abstractmethod
    def move_latent(self, v: Tensor, h: Tensor, noise: Tensor) -> Tensor:
        """Move latents h (B, H) by a transition that leaves p(h|v) invariant, with noise (B, H)."""

    @abstractmethod
    def visible_noise(self, shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
        """Draw the noise for :meth:`draw_visible`, shape (*shape, *event), with the dtype and device of ``like``."""

    @abstractmethod
    def draw_visible(self, h: Tensor, noise: Tensor) -> Tensor:
        """Turn noise (*L, B, *event) into samples v ~ p(v|h), shape (*L, B, *event), for h (*L, B, H)."""

    def sample_visible(self, h: Tensor, generator: torch.Generator) -> Tensor:
        """Draw visible vectors v ~ p(v|h), shape (*L, B, *event)."""
        return self.draw_visible(h, self.visible_noise(h.shape[:-1], h, generator))


class ConditionalEnergy(GibbsEnergy, MarginalEnergy):
    """An energy whose conditionals p(h|v) and p(v|h) can be sampled exactly, from noise that the caller draws.

    By default p(v|h) is a normal distribution. A subclass with another p(v|h) implements :meth:`visible_noise` and
    :meth:`draw_visible` in place of :meth:`visible_std`.
    """

    def visible_std(self) -> Tensor:
        """Compute the standard deviation of the normal distribution p(v|h), shape (*event)."""
        raise NotImplementedError(f"p(v|h) of {type(self).__name__} has no standard deviation of its own.")

    @abstractmethod
    def draw_latent(self, v: Tensor, noise: Tensor) -> Tensor:
        """Turn noise (*L, B, H) into samples h ~ p(h|v), shape (*L, B, H), for v (B, *event)."""

    def start_latent(self, v: Tensor, noise: Tensor) -> Tensor:
        """Turn noise (B, H) into samples h ~ p(h|v), shape (B, H)."""
        return self.draw_latent(v, noise)

    def move_latent(self, v: Tensor, h: Tensor, noise: Tensor) -> Tensor:
        """Turn noise (B, H) into samples h ~ p(h|v), which do not depend on the former h."""
        return self.draw_latent(v, noise)

    def visible_noise(self, shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
        """Draw the noise for :meth:`draw_visible`, shape (*shape, *event), with the dtype and device of ``like``."""
        return torch.randn((*shape, *self.event_shape), generator=generator, dtype=like.dtype, device=like.device)

    def draw_visible(self, h: Tensor, noise: Tensor) -> Tensor:
        """Turn noise (*L, B, *event) into samples v ~ p(v|h), shape (*L, B, *event), for h (*L, B, H)."""
        return self.visible_mean(h) + self.visible_std() * noise

    def sample_latent(self, v: Tensor, generator: torch.Generator) -> Tensor:
        """Draw latents h ~ p(h|v), shape (B, H)."""
        return self.draw_latent(v, self.latent_noise((len(v),), v, generator))


def refuse_bits(energy: Energy, what: str) -> None:
    """Raise an error if v consists of bits, for a part that needs gradients with respect to v.

    Args:
        energy: The energy.
        what: The name of the part.

    Raises:
        ConfigError: If v is binary.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> refuse_bits(GRBM(v_dim=2, h_dim=3), "BiSM")
    """
    if energy.binary_visible:
        raise ConfigError(
            f"{what} needs gradients with respect to v, and the v of {type(energy).__name__} are bits: train by "
            "method=pcd, cd, jarzynski, nce, snl or ed, and sample by Gibbs sweeps."
        )


def is_movable(energy: object) -> bool:
    """Return whether gradients can move all variables: v is real, and F(v) is tractable or the latents are real.

    Example:
        >>> is_movable(None)
        False
    """
    if not isinstance(energy, Energy) or energy.binary_visible:
        return False
    return isinstance(energy, MarginalEnergy) or energy.continuous


class VisibleEnergy(MarginalEnergy):
    r"""An energy without latents, :math:`p(v) \propto \exp(-F(v))`, for methods that need only F(v).

    It is treated as a joint energy with zero latents: E(v, h) = F(v).
    """

    h_dim = 0
    continuous = True

    def energy(self, v: Tensor, h: Tensor) -> Tensor:
        """Compute the free energy F(v), expanded to shape (*L, B), for v (B, *event) and an empty h (*L, B, 0)."""
        return self.free_energy(v).expand(h.shape[:-1])

    def forward(self, v: Tensor) -> Tensor:
        """Compute the energy F(v), shape (B,)."""
        return self.free_energy(v)
