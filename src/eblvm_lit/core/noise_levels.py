r"""Noised examples joined with their noise level to one vector w = (v~, log t).

The data v are noised by :math:`\tilde v = v + \sqrt t\, \epsilon`, where the level t is a variance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn

from eblvm_lit.errors import ConfigError

__all__ = ["NoiseRange", "NoisedNormal", "at_level", "join_level", "split_level"]


def join_level(v: Tensor, log_level: Tensor) -> Tensor:
    """Append the log noise level, log t, to each noised example v~; return w = (v~, log t), shape (B, n + 1).

    Each example has n numbers.

    Args:
        v: The noised examples v~, shape (B, *event).
        log_level: log t of each example, shape (B,).

    Example:
        >>> join_level(torch.zeros(1, 2), torch.ones(1)), join_level(torch.zeros(5, 1, 8, 8), torch.ones(5)).shape
        (tensor([[0., 0., 1.]]), torch.Size([5, 65]))
    """
    return torch.cat([v.flatten(1), log_level.unsqueeze(1)], dim=1)


def split_level(w: Tensor) -> tuple[Tensor, Tensor]:
    """Split w = (v~, log t) into the flattened noised examples v~, shape (B, n), and the log noise levels, shape (B,).

    Example:
        >>> split_level(torch.tensor([[2.0, 3.0, 1.0]]))
        (tensor([[2., 3.]]), tensor([1.]))
    """
    return w[:, :-1], w[:, -1]


def at_level(v: Tensor, level: float) -> Tensor:
    """Append log t, for one noise level t (a variance), to all examples v; return w = (v, log t), shape (B, n + 1).

    The examples have shape (B, *event), and each of them has n numbers.

    Example:
        >>> at_level(torch.zeros(1, 2), 1.0)
        tensor([[0., 0., 0.]])
    """
    return join_level(v, v.new_full((len(v),), math.log(level)))


@dataclass(frozen=True, kw_only=True)
class NoiseRange:
    """The smallest and largest noise level of a model, in units of the data's variance, and the moments of the data.

    Args:
        mean: The mean m of the data, one number, or one for each coordinate.
        std: The standard deviation s of the data, the same for every coordinate.
        smallest: The smallest noise level in units of s^2.
        largest: The largest noise level in units of s^2, at which noised data are almost normal.

    Raises:
        ConfigError: If the smallest level is not below the largest.

    Example:
        >>> NoiseRange(std=2.0).t_min, NoiseRange(std=2.0).t_max
        (0.0004, 400.0)
    """

    mean: float | Sequence[float] = 0.0
    std: PositiveFloat = 1.0
    smallest: PositiveFloat = 1e-4
    largest: PositiveFloat = 100.0

    def __post_init__(self) -> None:
        """Check the order of the levels."""
        if self.smallest >= self.largest:
            raise ConfigError(
                f"The smallest noise level, {self.smallest:g} s^2, is not below the largest, {self.largest:g} s^2. "
                "Energies can only be composed if they have noise levels in common."
            )

    @property
    def t_min(self) -> float:
        """The smallest noise level, a variance. The model's density at this level serves as its density of the data."""
        return self.smallest * self.std**2

    @property
    def t_max(self) -> float:
        """The largest noise level, a variance. Data with this noise have the mean m and the variance s^2 + t_max."""
        return self.largest * self.std**2


class NoisedNormal(nn.Module):
    r"""The negative log-density F_0 of noised normal data at every noise level, to which models add a learned energy.

    .. math:: F_0(\tilde v, t) = \frac{\|\tilde v - m\|^2}{2 (s^2 + t)} + \frac d2 \log 2 \pi (s^2 + t)

    exp(-F_0) is normalised at every level. Before they are noised, the normal data have the data's mean m and variance
    s^2. :meth:`inputs` scales v~ and log t so that a network receives numbers of order one.

    Args:
        noise_range: The moments of the data.
    """

    mean: Tensor

    def __init__(self, noise_range: NoiseRange) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(noise_range.mean, dtype=torch.get_default_dtype()))
        self.std = noise_range.std

    def energy(self, w: Tensor) -> Tensor:
        """Compute F_0, shape (B,), for noised examples with their noise levels, w = (v~, log t), shape (B, d + 1)."""
        v, log_level = split_level(w)
        variance = self.std**2 + log_level.exp()
        return (v - self.mean).square().sum(1) / (2 * variance) + 0.5 * v.shape[1] * (2 * math.pi * variance).log()

    def draw(self, shape: tuple[int, int], level: float, generator: torch.Generator) -> Tensor:
        """Draw n noised examples v~ from the density exp(-F_0) at one noise level t; return w = (v~, log t).

        ``shape`` is (n, d), and w has shape (n, d + 1).

        Example:
            >>> NoisedNormal(NoiseRange()).draw((5, 2), 1.0, torch.Generator()).shape
            torch.Size([5, 3])
        """
        like = self.mean
        z = torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device)
        return at_level(self.mean + math.sqrt(self.std**2 + level) * z, level)

    def inputs(self, w: Tensor) -> Tensor:
        """Scale w = (v~, log t) to the inputs of a network, ((v~ - m) / sqrt(s^2 + t), log(t / s^2) / 4).

        w and the inputs have shape (B, d + 1).
        """
        v, log_level = split_level(w)
        std = (self.std**2 + log_level.exp()).sqrt().unsqueeze(1)
        return join_level((v - self.mean) / std, (log_level - 2 * math.log(self.std)) / 4)
