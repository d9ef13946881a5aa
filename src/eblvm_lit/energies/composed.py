r"""Energies that combine trained energies of every noise level: a product, a mixture, and a tilted energy.

Densities are combined by combining their energies. Metropolis-adjusted sampling needs the combined energy.
Draw samples by :class:`~eblvm_lit.samplers.probability_flow.ProbabilityFlow` with ``n_corrections``. The gradient of a
product or of a tilted energy is the score of noised data only at the smallest level, unless the factor of the tilted
energy is one of noised data. So a flow without corrections is biased (Du et al. 2023, arXiv 2302.11552).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from eblvm_lit.core.noise_levels import NoisedNormal, NoiseRange, join_level, split_level
from eblvm_lit.energies.base import MarginalEnergy, VisibleEnergy
from eblvm_lit.energies.noise_conditional import FreeEnergyOfLevels, MarginalAtLevel
from eblvm_lit.errors import ConfigError

__all__ = ["MixtureEnergy", "ProductEnergy", "TiltedEnergy"]


def of_every_level(energy: object) -> FreeEnergyOfLevels:
    """Return an energy of all noise levels: ``energy`` itself, or the energy of which ``energy`` is one level.

    Raises:
        ConfigError: If the energy does not know the noise level, or has no tractable free energy.
    """
    every = energy.every_level if isinstance(energy, MarginalAtLevel) else energy
    if not isinstance(every, FreeEnergyOfLevels):
        raise ConfigError(
            f"{type(energy).__name__} cannot be composed: train energies F(v, t) of every noise level, by method=dual "
            "or levels."
        )
    return every


class Composed(FreeEnergyOfLevels, VisibleEnergy):
    """The base class of composed energies, which share the parameters of their parts and have no latents.

    Args:
        parts: The energies of every level; they have one shape of v.
        noise_range: The levels of the composed energy.

    Raises:
        ConfigError: If the parts have no noise level in common.
    """

    def __init__(self, parts: Sequence[FreeEnergyOfLevels], noise_range: NoiseRange) -> None:
        super().__init__()
        self.v_shape = parts[0].v_shape
        self.event_shape = (math.prod(self.v_shape) + 1,)
        self.noise_range = noise_range
        self.reference = NoisedNormal(noise_range).to(parts[0].reference.mean)
        self.parts = nn.ModuleList(parts)


def moments(parts: Sequence[FreeEnergyOfLevels], weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the means and variances of the data of the K parts, and the weighted average of the means.

    The shapes are (K, d or 1), (K,) and (d or 1,).
    """
    means = torch.stack(torch.broadcast_tensors(*(torch.as_tensor(part.noise_range.mean) for part in parts)))
    means = means.double().view(len(parts), -1)
    variances = torch.tensor([part.noise_range.std**2 for part in parts], dtype=torch.float64)
    return means, variances, (weights.double().unsqueeze(1) * means).sum(0) / weights.double().sum()


def levels_between(t_min: float, t_max: float, mean: Tensor, variance: float) -> NoiseRange:
    """Return the range of noise levels from t_min to t_max for data with the given mean and variance.

    The mean has shape (d,), or (1,) if it is the same for all coordinates.

    Example:
        >>> levels_between(0.04, 4.0, torch.zeros(1), 4.0).t_min
        0.04
    """
    m = mean.tolist() if len(mean) > 1 else float(mean)
    return NoiseRange(mean=m, std=math.sqrt(variance), smallest=t_min / variance, largest=t_max / variance)


class ProductEnergy(Composed):
    r"""The energy of the normalised product of K densities, whose samples are likely under all of them.

    .. math:: F(\tilde v, t) = \sum_{k=1}^K F_k(\tilde v, K t)

    The levels of the parts are K times as large: at large levels, where all parts are normal with the variance K t,
    their product is then normal with the variance t, as noised data of level t are. At the smallest level F is the sum
    of the energies of the data, if all parts have the same smallest level. In between it is not the energy of the
    noised product, and log Z depends on the level.

    Args:
        energies: The K energies, of the data (``run.energy``) or of every level; they are shared and not copied.

    Raises:
        ConfigError: If the energies cannot be composed.

    Example:
        >>> from eblvm_lit.energies.mlp_energy import MLPEnergy
        >>> from eblvm_lit.energies.noise_conditional import NoiseConditionalFreeEnergy
        >>> inner = MLPEnergy(v_dim=3, widths=[8])
        >>> energy = NoiseConditionalFreeEnergy(energy=inner, v_shape=[2], noise_range=NoiseRange()).of_data()
        >>> v = torch.zeros(5, 2)
        >>> both = ProductEnergy(energies=[energy, energy]).of_data()
        >>> torch.allclose(both.free_energy(v), 2 * energy.free_energy(v))
        True
    """

    shares_log_z = False

    def __init__(self, *, energies: Sequence[MarginalEnergy]) -> None:
        parts = [of_every_level(energy) for energy in energies]
        k = len(parts)
        precisions = torch.tensor([part.noise_range.std**-2 for part in parts], dtype=torch.float64)
        mean = moments(parts, precisions)[2]
        t_min = max(part.noise_range.t_min for part in parts) / k
        t_max = min(part.noise_range.t_max for part in parts) / k
        super().__init__(parts, levels_between(t_min, t_max, mean, float(1 / precisions.sum())))

    def free_energy(self, v: Tensor) -> Tensor:
        """Compute the free energy F(w), shape (B,), for noised data followed by their log level, w (B, n + 1)."""
        x, log_level = split_level(v)
        w = join_level(x, log_level + math.log(len(self.parts)))
        return torch.stack([part.free_energy(w) for part in self.parts]).sum(0)  # pyright: ignore[reportCallIssue]


class MixtureEnergy(Composed):
    r"""The energy of the mixture of K densities, each normalised by its own constant Z.

    .. math:: F(\tilde v, t) = -\log \sum_{k=1}^K w_k\, e^{-F_k(\tilde v, t) - \log Z_k}

    log Z_k is estimated at the largest level of part k, when the mixture is made: make it from trained energies. If
    each part's levels share their log Z, then F is the energy of the noised mixture, log Z is 0 at every level, and the
    probability flow needs no corrections.

    Args:
        energies: The K energies, of the data (``run.energy``) or of every level; they are shared and not copied.
        weights: The weights w_k, which are divided by their sum; equal weights if not given.

    Raises:
        ConfigError: If the energies cannot be composed, or if the weights are not K positive numbers.

    Attributes:
        log_z: log Z_k of each part, shape (K,).

    Example:
        >>> from eblvm_lit.energies.mlp_energy import MLPEnergy
        >>> from eblvm_lit.energies.noise_conditional import NoiseConditionalFreeEnergy
        >>> inner = MLPEnergy(v_dim=3, widths=[8])
        >>> energy = NoiseConditionalFreeEnergy(energy=inner, v_shape=[2], noise_range=NoiseRange())
        >>> MixtureEnergy(energies=[energy, energy], weights=[0.9, 0.1]).free_energy(torch.zeros(5, 3)).shape
        torch.Size([5])
    """

    log_weights: Tensor
    log_z: Tensor

    def __init__(self, *, energies: Sequence[MarginalEnergy], weights: Sequence[float] | None = None) -> None:
        parts = [of_every_level(energy) for energy in energies]
        w = torch.as_tensor([1.0] * len(parts) if weights is None else weights, dtype=torch.float64)
        if len(w) != len(parts) or not bool((w > 0).all()):
            raise ConfigError(f"A mixture of {len(parts)} energies has as many positive weights, not {w.tolist()}.")
        means, variances, mean = moments(parts, w)
        spread = variances + (means - mean).square().mean(1)
        t_min = max(part.noise_range.t_min for part in parts)
        t_max = min(part.noise_range.t_max for part in parts)
        super().__init__(parts, levels_between(t_min, t_max, mean, float((w * spread).sum() / w.sum())))
        like = self.reference.mean
        self.register_buffer("log_weights", (w / w.sum()).log().to(like))
        own = [part.own_log_partition(part.noise_range.t_max) for part in parts]
        self.register_buffer("log_z", torch.stack(own).to(like))
        self.shares_log_z = all(part.shares_log_z for part in parts)

    def free_energy(self, v: Tensor) -> Tensor:
        """Compute the free energy F(w), shape (B,), for noised data followed by their log level, w (B, n + 1)."""
        found = torch.stack([part.free_energy(v) for part in self.parts], 1)  # pyright: ignore[reportCallIssue]
        return -torch.logsumexp(self.log_weights - self.log_z - found, 1)


class TiltedEnergy(Composed):
    r"""The energy of a density times a factor, such as a classifier's probability of one class.

    .. math:: F(\tilde v, t) = F_1(\tilde v, t) - a(t) \log c(\tilde v, t), \quad
        a(t) = \frac{s^2 + t_{min}}{s^2 + t} \text{ or } 1

    If c is the probability of a class given noised data of level t, then with a = 1 F is the energy of the noised data
    of this class (``of_noised_data``). A factor of data without noise can be used, too: only the smallest level, where
    a = 1, defines the density, and a(t) lets the factor come in while the noise goes. At a large level the unchanged
    factor would be far too steep for noised data.

    Args:
        energy: The energy, of the data (``run.energy``) or of every level; it is shared and not copied.
        log_factor: The function log c, which maps v~ (B, *event) and log t (B,) to (B,); if it is a module, its
            parameters become parameters of this energy.
        of_noised_data: Whether c is the probability given noised data of the level, so that a = 1.

    Raises:
        ConfigError: If the energy cannot be composed.

    Example:
        >>> from eblvm_lit.energies.mlp_energy import MLPEnergy
        >>> from eblvm_lit.energies.noise_conditional import NoiseConditionalFreeEnergy
        >>> inner = MLPEnergy(v_dim=3, widths=[8])
        >>> energy = NoiseConditionalFreeEnergy(energy=inner, v_shape=[2], noise_range=NoiseRange()).of_data()
        >>> tilted = TiltedEnergy(energy=energy, log_factor=lambda v, log_level: 3 * v[:, 0]).of_data()
        >>> v = torch.ones(5, 2)
        >>> torch.allclose(tilted.free_energy(v), energy.free_energy(v) - 3)
        True
    """

    shares_log_z = False

    def __init__(
        self,
        *,
        energy: MarginalEnergy,
        log_factor: Callable[[Tensor, Tensor], Tensor],
        of_noised_data: bool = False,
    ) -> None:
        part = of_every_level(energy)
        super().__init__([part], part.noise_range)
        self.log_factor = log_factor
        self.of_noised_data = of_noised_data

    def free_energy(self, v: Tensor) -> Tensor:
        """Compute the free energy F(w), shape (B,), for noised data followed by their log level, w (B, n + 1)."""
        x, log_level = split_level(v)
        (part,) = self.parts
        log_factor = self.log_factor(x.unflatten(1, self.v_shape), log_level)
        if not self.of_noised_data:
            variance = self.noise_range.std**2
            log_factor = log_factor * (variance + self.noise_range.t_min) / (variance + log_level.exp())
        return part.free_energy(v) - log_factor  # pyright: ignore[reportCallIssue]
