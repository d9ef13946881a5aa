r"""Energies E(v~, h, t) of noised data v~ that take the noise level t as one more visible coordinate.

The data v are noised by :math:`\tilde v = v + \sqrt t\, \epsilon`, where the level t is a variance. The visible vector
of these energies is :math:`w = (\tilde v, \log t)`. A score estimator that differentiates with respect to the visible
vector therefore also gives the derivative with respect to the level, whichever way it treats the latents.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from eblvm_lit.core.noise_levels import NoisedNormal, NoiseRange, at_level
from eblvm_lit.core.ranges import EventShape
from eblvm_lit.core.tensors import at_least_float32
from eblvm_lit.energies.base import Energy, ExactLatentEnergy, FeatureEnergy, LatentEnergy, MarginalEnergy
from eblvm_lit.errors import ConfigError

__all__ = [
    "AtLevel",
    "ExactLatentsAtLevel",
    "FreeEnergyOfLevels",
    "MarginalAtLevel",
    "NoiseConditionalEnergy",
    "NoiseConditionalExactLatents",
    "NoiseConditionalFreeEnergy",
    "knows_every_level",
]


class _OfEveryLevel(Energy):
    """The base class of energies of w = (v~, log t) that add an energy E' to the energy of noised normal data."""

    def __init__(self, *, energy: Any, v_shape: EventShape, noise_range: NoiseRange) -> None:
        super().__init__()
        n = math.prod(v_shape) + 1
        if tuple(energy.event_shape) != (n,):
            raise ConfigError(
                f"An energy that knows the noise level has a vector of {n} numbers as its input here, the {n - 1} of v "
                f"and the level; the given energy has inputs of shape {tuple(energy.event_shape)}."
            )
        self.event_shape = (n,)
        self.noise_range = noise_range
        self.v_shape = tuple(v_shape)
        self.h_dim = energy.h_dim
        self.continuous = energy.continuous
        self.inner = energy
        self.reference = NoisedNormal(noise_range)


class NoiseConditionalEnergy(_OfEveryLevel, FeatureEnergy):
    r"""A joint energy at every noise level, which is the sum of the energy of noised normal data and an energy E'.

    .. math:: E(w, h) = F_0(\tilde v, t) + E'(x, h), \quad
        x = \left(\frac{\tilde v - m}{\sqrt{s^2 + t}},\; \tfrac14 \log \frac{t}{s^2}\right), \quad
        w = (\tilde v, \log t)

    F_0 is the negative log-density of noised normal data with the data's moments; see :class:`NoisedNormal`. Reference
    for the normalisation over levels: Guth, Kadkhodaie and Simoncelli 2025, arXiv 2506.05310, who have no latents.

    Args:
        energy: The energy E', whose visible vector has one number more than v.
        v_shape: The shape of one example v.
        noise_range: The noise levels, and the moments m and s of the data.

    Attributes:
        v_shape: The shape of one example v. The attribute ``event_shape`` is that of w, which is (n + 1,).

    Example:
        >>> from eblvm_lit.core.noise_levels import NoiseRange, join_level
        >>> from eblvm_lit.energies.deep import DeepVectorEnergy
        >>> inner = DeepVectorEnergy(v_dim=3, h_dim=4)
        >>> energy = NoiseConditionalEnergy(energy=inner, v_shape=[2], noise_range=NoiseRange())
        >>> w = join_level(torch.zeros(5, 2), torch.zeros(5))
        >>> h = torch.zeros(7, 5, 4)
        >>> energy.energy(w, h).shape, energy.at_level(0.01).energy(w[:, :2], h).shape
        (torch.Size([7, 5]), torch.Size([7, 5]))
    """

    def __init__(
        self,
        *,
        energy: FeatureEnergy,
        v_shape: EventShape,
        noise_range: NoiseRange,
    ) -> None:
        super().__init__(energy=energy, v_shape=v_shape, noise_range=noise_range)

    def features(self, v: Tensor) -> Tensor:
        """Compute the features of E' and, as the last column, the energy of noised normal data, for w (B, n + 1)."""
        of_inner = self.inner.features(self.reference.inputs(v))
        return torch.cat([at_least_float32(of_inner), self.reference.energy(v).unsqueeze(1)], dim=1)

    def at_features(self, features: Tensor) -> LatentEnergy:
        """Return the energy E(w, .) as a function of h, from the features of w."""
        inner = self.inner.at_features(features[:, :-1])
        return lambda h: inner(h) + features[:, -1]

    def at_level(self, level: float) -> AtLevel:
        """Return the energy of v at one level t, which shares this module's parameters."""
        return AtLevel(self, level)

    def of_data(self) -> AtLevel:
        """Return the energy of the data, which is the energy at the smallest noise level."""
        return self.at_level(self.noise_range.t_min)


class FreeEnergyOfLevels(MarginalEnergy):
    """The base class of energies with a tractable free energy of noised data v~ and their log level, w = (v~, log t).

    A subclass sets the attributes and computes the energy.

    Attributes:
        v_shape: The shape of one example v. The attribute ``event_shape`` is that of w, which is (n + 1,).
        noise_range: The noise levels, and the moments of the data.
        reference: The density of noised normal data with these moments.
        shares_log_z: Whether F is the energy of one density with noise, so that log Z is the same at every level.
    """

    v_shape: tuple[int, ...]
    noise_range: NoiseRange
    reference: NoisedNormal
    shares_log_z = True

    def at_level(self, level: float) -> MarginalAtLevel:
        """Return the energy of v at one level t, which shares this module's parameters."""
        return MarginalAtLevel(self, level)

    def of_data(self) -> MarginalAtLevel:
        """Return the energy of the data, which is the energy at the smallest noise level."""
        return self.at_level(self.noise_range.t_min)

    @torch.no_grad()
    def own_log_partition(self, level: float, n: int = 4096) -> Tensor:
        r"""Estimate log Z of the free energy at one level, by importance sampling from noised normal data.

        .. math:: Z(t) = \int e^{-F(\tilde v, t)} d\tilde v
            = E_{\tilde v \sim e^{-F_0}}\, e^{F_0(\tilde v, t) - F(\tilde v, t)}

        The estimate is accurate at the largest level, where noised data are almost normal. If F
        satisfies the equation of its derivative in t, then Z is the same at every level. The n normal points come from
        a fixed seed, so that the value depends only on the parameters.
        """
        generator = torch.Generator(self.reference.mean.device).manual_seed(0)
        w = self.reference.draw((n, math.prod(self.v_shape)), level, generator)
        return torch.logsumexp(self.reference.energy(w) - self.free_energy(w), 0) - math.log(n)


class NoiseConditionalFreeEnergy(_OfEveryLevel, FreeEnergyOfLevels):
    r"""A free energy at every noise level, which is the sum of the energy of noised normal data and a free energy F'.

    .. math:: F(w) = F_0(\tilde v, t) + F'(x), \quad
        x = \left(\frac{\tilde v - m}{\sqrt{s^2 + t}},\; \tfrac14 \log \frac{t}{s^2}\right), \quad
        w = (\tilde v, \log t)

    Args:
        energy: The energy with the free energy F', whose visible vector has one number more than v.
        v_shape, noise_range: As in :class:`NoiseConditionalEnergy`.

    Example:
        >>> from eblvm_lit.core.noise_levels import NoiseRange, join_level
        >>> from eblvm_lit.energies.mlp_energy import MLPEnergy
        >>> inner = MLPEnergy(v_dim=3, widths=[8])
        >>> energy = NoiseConditionalFreeEnergy(energy=inner, v_shape=[2], noise_range=NoiseRange())
        >>> energy.score(join_level(torch.zeros(5, 2), torch.zeros(5))).shape, energy.at_level(0.1).event_shape
        (torch.Size([5, 3]), (2,))
    """

    def __init__(
        self,
        *,
        energy: MarginalEnergy,
        v_shape: EventShape,
        noise_range: NoiseRange,
    ) -> None:
        super().__init__(energy=energy, v_shape=v_shape, noise_range=noise_range)

    def energy(self, v: Tensor, h: Tensor) -> Tensor:
        """Compute E(w, h), shape (*L, B), for w (B, n + 1) and h (*L, B, H)."""
        return self.reference.energy(v) + self.inner.energy(self.reference.inputs(v), h)

    def free_energy(self, v: Tensor) -> Tensor:
        """Compute the free energy F(w), shape (B,), for w (B, n + 1)."""
        return self.reference.energy(v) + self.inner.free_energy(self.reference.inputs(v))


class NoiseConditionalExactLatents(NoiseConditionalFreeEnergy, ExactLatentEnergy):
    """A free energy at every noise level whose latents have a known posterior mean, such as those of a harmonium.

    Args:
        energy: An energy with a closed form of F and of E[h|v], whose visible vector has one number more than v.
        v_shape, noise_range: As in :class:`NoiseConditionalEnergy`.

    Example:
        >>> from eblvm_lit.energies.harmonium import DeepHarmonium
        >>> from eblvm_lit.networks.mlp import MLP
        >>> inner = DeepHarmonium(network=MLP(sizes=[3, 8]), h_dim=4)
        >>> energy = NoiseConditionalExactLatents(energy=inner, v_shape=[2], noise_range=NoiseRange())
        >>> energy.at_level(0.01).latent_mean(torch.zeros(5, 2)).shape
        torch.Size([5, 4])
    """

    inner: ExactLatentEnergy

    def __init__(self, *, energy: ExactLatentEnergy, v_shape: EventShape, noise_range: NoiseRange) -> None:
        super().__init__(energy=energy, v_shape=v_shape, noise_range=noise_range)

    def latent_mean(self, v: Tensor) -> Tensor:
        """Compute the posterior mean E[h|w], shape (B, H), for w (B, n + 1)."""
        return self.inner.latent_mean(self.reference.inputs(v))

    def at_level(self, level: float) -> ExactLatentsAtLevel:
        """Return the energy of v at one level t, which shares this module's parameters."""
        return ExactLatentsAtLevel(self, level)


class _OneLevel(Energy):
    """The base class of energies of v at one noise level t, which share their parameters with the energy of all levels.

    Args:
        energy: The energy at every level.
        level: The level t, a variance in the squared units of v.
    """

    def __init__(self, energy: Any, level: float) -> None:
        super().__init__()
        self.event_shape = energy.v_shape
        self.h_dim = energy.h_dim
        self.continuous = energy.continuous
        self.every_level = energy
        self.level = level


class AtLevel(_OneLevel, FeatureEnergy):
    """The joint energy of v at one noise level, which shares its parameters with the energy of all levels.

    Args:
        energy: The energy at every level.
        level: The level t, a variance in the squared units of v.

    Example:
        >>> from eblvm_lit.energies.deep import DeepVectorEnergy
        >>> inner = DeepVectorEnergy(v_dim=3, h_dim=4)
        >>> energy = NoiseConditionalEnergy(energy=inner, v_shape=[2], noise_range=NoiseRange())
        >>> AtLevel(energy, 0.01).energy(torch.zeros(5, 2), torch.zeros(7, 5, 4)).shape
        torch.Size([7, 5])
    """

    every_level: NoiseConditionalEnergy

    def features(self, v: Tensor) -> Tensor:
        """Compute the features of v at this noise level."""
        return self.every_level.features(at_level(v, self.level))

    def at_features(self, features: Tensor) -> LatentEnergy:
        """Return the energy E(v, .) as a function of h, from the features of v."""
        return self.every_level.at_features(features)


class MarginalAtLevel(_OneLevel, MarginalEnergy):
    """The energy of v at one noise level; its free energy is tractable, and it shares its parameters with all levels.

    Args:
        energy: The energy at every level.
        level: The level t, a variance in the squared units of v.

    Example:
        >>> from eblvm_lit.energies.mlp_energy import MLPEnergy
        >>> inner = MLPEnergy(v_dim=3, widths=[8])
        >>> energy = NoiseConditionalFreeEnergy(energy=inner, v_shape=[2], noise_range=NoiseRange())
        >>> MarginalAtLevel(energy, 0.01).score(torch.zeros(5, 2)).shape
        torch.Size([5, 2])
    """

    every_level: FreeEnergyOfLevels

    def energy(self, v: Tensor, h: Tensor) -> Tensor:
        """Compute E(v, h) at this level, shape (*L, B), for v (B, *event) and h (*L, B, H)."""
        return self.every_level.energy(at_level(v, self.level), h)

    def free_energy(self, v: Tensor) -> Tensor:
        """Compute F(v) at this level, shape (B,), for v (B, *event)."""
        return self.every_level.free_energy(at_level(v, self.level))


class ExactLatentsAtLevel(MarginalAtLevel, ExactLatentEnergy):
    """The energy of v at one noise level, with a known posterior mean of its latents.

    Args:
        energy: The energy at every level.
        level: The level t, a variance in the squared units of v.

    Example:
        >>> from eblvm_lit.energies.harmonium import DeepHarmonium
        >>> from eblvm_lit.networks.mlp import MLP
        >>> inner = DeepHarmonium(network=MLP(sizes=[3, 8]), h_dim=4)
        >>> energy = NoiseConditionalExactLatents(energy=inner, v_shape=[2], noise_range=NoiseRange())
        >>> ExactLatentsAtLevel(energy, 0.01).latent_mean(torch.zeros(5, 2)).shape
        torch.Size([5, 4])
    """

    every_level: NoiseConditionalExactLatents

    def latent_mean(self, v: Tensor) -> Tensor:
        """Compute the posterior mean E[h|v] at this level, shape (B, H), for v (B, *event)."""
        return self.every_level.latent_mean(at_level(v, self.level))


def knows_every_level(energy: Energy | None) -> bool:
    """Return whether an energy is that of the data in a model of every noise level.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> knows_every_level(GRBM(v_dim=2, h_dim=3))
        False
    """
    return isinstance(energy, AtLevel | MarginalAtLevel)
