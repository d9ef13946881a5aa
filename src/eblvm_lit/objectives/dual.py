"""Dual score matching, which learns the energy's derivatives with respect to v and to the noise level."""

from __future__ import annotations

import math
from typing import Any

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from eblvm_lit.core.noise_levels import NoiseRange, join_level, split_level
from eblvm_lit.errors import ConfigError
from eblvm_lit.objectives.base import Noise, Objective, ScoreFunction

__all__ = ["Dual", "residuals"]


class Dual(Objective):
    r"""The dual score matching objective, for energies of noised data and their level, :math:`w = (\tilde v, \log t)`.

    The data are noised at a random level, :math:`\tilde v = v + \sqrt t\, \epsilon`, and the energy's derivatives with
    respect to v~ and to log t are both regressed on what the noise says about them:

    .. math:: \frac1d \| \sqrt t\, \nabla_{\tilde v} F - \epsilon \|^2
        + \lambda \left( \frac{1 - \|\epsilon\|^2 / d}{2} - \frac1d \frac{\partial F}{\partial \log t} \right)^2

    At the optimum :math:`\nabla F = E[\epsilon | \tilde v] / \sqrt t` and
    :math:`\partial F / \partial t = d / (2t) - E[\|\epsilon\|^2 | \tilde v] / (2t)`, so that the densities of all
    levels have the same normalising constant. The distribution of log t is uniform between t_min and t_max, or has a
    peak (``focus_width``). The B examples of a minibatch take equally spaced quantiles of it, shifted by one random
    number. Reference: Guth, Kadkhodaie and Simoncelli 2025, arXiv 2506.05310.

    Args:
        noise_range: The noise levels; the model's density of the data is its density at the smallest level, t_min.
        time_weight: The weight lambda of the derivative with respect to the level.
        unit_variance: Whether the first term is multiplied by (s^2 + t) / s^2, for data of standard deviation s. Its
            value is then 1 at every level if F is the energy of noised normal data of the same moments, so that no
            level dominates the training of a large network (Karras et al. 2022, arXiv 2206.00364). Without it, the
            levels above s^2 add little.
        focus_width: If it is given, log t has a Cauchy distribution with its peak at log s^2 - 1 and this half width
            at half maximum, cut off at t_min and t_max, in place of the uniform distribution. More of the training is
            then spent on the levels at which the contents of an image are decided. The position of the peak is that of
            Karras et al. 2022, who take a normal distribution; the tails of a Cauchy distribution reach all levels,
            which the normalising constant needs.

    Example:
        >>> objective, v = Dual(noise_range=NoiseRange()), torch.zeros(1, 2)
        >>> noise = {"eps": torch.ones(1, 2), "log_level": torch.zeros(1)}
        >>> w = objective.perturb(v, noise)
        >>> objective.loss(lambda w: torch.zeros_like(w), w, noise)  # |eps|^2 / d = 1, and the second term is 0
        tensor([1.])
    """

    words = "dual score matching at every noise level"
    pointwise = True
    perturbs = True

    def __init__(
        self,
        *,
        noise_range: NoiseRange,
        time_weight: NonNegativeFloat = 1.0,
        unit_variance: bool = False,
        focus_width: PositiveFloat | None = None,
    ) -> None:
        self.noise_range = noise_range
        self.time_weight = time_weight
        self.unit_variance = unit_variance
        self.focus_width = focus_width

    def noise(self, v: Tensor, shape: tuple[int, ...], generator: torch.Generator) -> Noise:
        """Draw standard normal ``eps`` (*shape, B, *event) and log t of each example, ``log_level`` (*shape, B)."""
        options = {"generator": generator, "dtype": v.dtype, "device": v.device}
        eps = torch.randn((*shape, *v.shape), **options)
        shift = torch.rand((*shape, 1), **options)
        position = (torch.arange(len(v), dtype=v.dtype, device=v.device) + shift) / len(v)
        return {"eps": eps, "log_level": self.log_level(position)}

    def log_level(self, position: Tensor) -> Tensor:
        """Return the quantiles of log t at positions between 0 and 1, in the shape of the positions.

        Example:
            >>> Dual(noise_range=NoiseRange(smallest=1e-2, largest=1e2)).log_level(torch.tensor([0.25, 0.5])).exp()
            tensor([0.1000, 1.0000])
        """
        lowest = math.log(self.noise_range.t_min)
        highest = math.log(self.noise_range.t_max)
        if self.focus_width is None:
            return lowest + position * (highest - lowest)
        peak = 2 * math.log(self.noise_range.std) - 1
        first = math.atan((lowest - peak) / self.focus_width)
        last = math.atan((highest - peak) / self.focus_width)
        return peak + self.focus_width * (first + position * (last - first)).tan()

    def perturb(self, v: Tensor, noise: Noise) -> Tensor:
        """Return w, which contains the noised data and the logarithms log t of their noise levels, shape (B, n + 1)."""
        std = (noise["log_level"] / 2).exp().view(-1, *(1,) * (v.dim() - 1))
        return join_level(v + std * noise["eps"], noise["log_level"])

    def of_data(self, network: Any) -> Any:
        """Return the energy or the posterior at the smallest noise level, t_min.

        Raises:
            ConfigError: If the network does not know the noise level.
        """
        if not hasattr(network, "of_data"):
            raise ConfigError(
                f"{type(network).__name__} does not know the noise level, which objective=dual needs: use a model such "
                "as model=noise_conditional, or NoiseConditionalEnergy around yours."
            )
        return network.of_data()

    def space_weight(self, noise: Noise) -> Tensor:
        """Compute the weight of the loss's first term for each example, shape (B,)."""
        level = noise["log_level"]
        return 1 + level.exp() / self.noise_range.std**2 if self.unit_variance else torch.ones_like(level)

    def loss(self, score: ScoreFunction, v: Tensor, noise: Noise) -> Tensor:
        """Compute the loss of each example, shape (B,), from the score at w, shape (B, n + 1)."""
        in_space, in_level = residuals(score(v), noise)
        return self.space_weight(noise) * in_space.square().mean(1) + self.time_weight * in_level.square()

    def cotangent(self, s: Tensor, v: Tensor, noise: Noise) -> Tensor:
        """Return the gradient of the summed loss with respect to the scores s, shape (B, n + 1)."""
        in_space, in_level = residuals(s, noise)
        n = in_space.shape[1]
        weight = self.space_weight(noise) * (noise["log_level"] / 2).exp()
        return join_level(2 / n * weight.unsqueeze(1) * in_space, 2 / n * self.time_weight * in_level)


def residuals(s: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
    r"""Compute the two residuals of the loss, of which dual score matching takes the squares.

    They are :math:`\sqrt t\, s_v + \epsilon`, shape (B, d), and
    :math:`\tfrac12 (1 - |\epsilon|^2 / d) + s_t / d`, shape (B,).

    Args:
        s: The score (s_v, s_t), the derivatives of -F with respect to v~ and to log t, shape (B, d + 1).
        noise: The noise ``eps`` of the B examples, and log t of each, ``log_level``, shape (B,).

    Example:
        >>> residuals(torch.zeros(1, 3), {"eps": torch.ones(1, 2), "log_level": torch.zeros(1)})
        (tensor([[1., 1.]]), tensor([0.]))
    """
    of_v, of_level = split_level(s)
    eps = noise["eps"].flatten(1)
    in_level = 0.5 * (1 - eps.square().mean(1)) + of_level / eps.shape[1]
    return (noise["log_level"] / 2).exp().unsqueeze(1) * of_v + eps, in_level
