"""Posteriors q(h|v~, t) of noised data v~, for every noise level t, and the posterior at one fixed noise level."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from eblvm_lit.core.noise_levels import NoisedNormal, NoiseRange, at_level
from eblvm_lit.posteriors.base import DistributionParams, LatentEnergy, Posterior

__all__ = ["NoiseConditionalPosterior", "PosteriorAtLevel"]


class _OfInputs(Posterior):
    """A posterior that evaluates a wrapped posterior at a function of v, which a subclass defines as :meth:`inputs`.

    Args:
        posterior: The wrapped posterior.
    """

    def __init__(self, posterior: Posterior) -> None:
        super().__init__()
        self.h_dim = posterior.h_dim
        self.continuous = posterior.continuous
        self.reparametrised = posterior.reparametrised
        self.inner = posterior

    @abstractmethod
    def inputs(self, v: Tensor) -> Tensor:
        """Compute the input of the wrapped posterior from v."""

    def noise(self, shape: tuple[int, ...], v: Tensor, generator: torch.Generator) -> Tensor:
        """Draw the noise of the posterior's samples, shape (*shape, B, H)."""
        return self.inner.noise(shape, v, generator)

    def distribution_params(self, v: Tensor) -> DistributionParams:
        """Compute the parameters of q(h|v), each of shape (B, H)."""
        return self.inner.distribution_params(self.inputs(v))

    def rsample_given(self, q_params: DistributionParams, noise: Tensor) -> Tensor:
        """Compute reparametrised samples h from the parameters of q(h|v) and noise, shape (*L, B, H)."""
        return self.inner.rsample_given(q_params, noise)

    def sample_given(self, q_params: DistributionParams, noise: Tensor) -> Tensor:
        """Compute exact samples h from the parameters of q(h|v) and noise, shape (*L, B, H)."""
        return self.inner.sample_given(q_params, noise)

    def log_prob_given(self, q_params: DistributionParams, h: Tensor) -> Tensor:
        """Compute log q(h|v) from the parameters of q(h|v) and latents h, shape (*L, B)."""
        return self.inner.log_prob_given(q_params, h)

    def information_given(self, q_params: DistributionParams) -> DistributionParams:
        """Compute, for each parameter of q(h|v), the diagonal of the Fisher information matrix, shape (B, H)."""
        return self.inner.information_given(q_params)

    def natural_gradient_step(
        self,
        q_params: DistributionParams,
        energy: LatentEnergy,
        noise: Tensor | None = None,
        *,
        step_size: float = 1.0,
        move_precision: bool = False,
    ) -> DistributionParams:
        """Take one natural-gradient step of the wrapped posterior."""
        return self.inner.natural_gradient_step(
            q_params, energy, noise, step_size=step_size, move_precision=move_precision
        )

    def mean(self, v: Tensor) -> Tensor:
        """Compute the posterior mean E_q[h|v], shape (B, H)."""
        return self.inner.mean(self.inputs(v))


class NoiseConditionalPosterior(_OfInputs):
    r"""A posterior q(h|v~, t) of noised data v~ at every noise level t, computed from scaled v~ and log t.

    .. math:: q(h | w) = q'(h | x), \quad
        x = \left(\frac{\tilde v - m}{\sqrt{s^2 + t}},\; \tfrac14 \log \frac{t}{s^2}\right), \quad
        w = (\tilde v, \log t)

    Args:
        posterior: The posterior q', whose input has one number more than v.
        noise_range: The moments m and s of the data.

    Example:
        >>> from eblvm_lit.core.noise_levels import NoiseRange, join_level
        >>> from eblvm_lit.posteriors.gaussian import LinearGaussianPosterior
        >>> linear = LinearGaussianPosterior(v_dim=3, h_dim=4)
        >>> q = NoiseConditionalPosterior(posterior=linear, noise_range=NoiseRange())
        >>> q.mean(join_level(torch.zeros(5, 2), torch.zeros(5))).shape, q.at_level(0.1).mean(torch.zeros(5, 2)).shape
        (torch.Size([5, 4]), torch.Size([5, 4]))
    """

    def __init__(self, *, posterior: Posterior, noise_range: NoiseRange) -> None:
        super().__init__(posterior)
        self.noise_range = noise_range
        self.reference = NoisedNormal(noise_range)

    def inputs(self, v: Tensor) -> Tensor:
        """Compute the scaled inputs x from the noised data and their level, w = (v~, log t), shape (B, n + 1)."""
        return self.reference.inputs(v)

    def at_level(self, level: float) -> PosteriorAtLevel:
        """Return the posterior q(h|v) at one noise level t, which shares this module's parameters."""
        return PosteriorAtLevel(self, level)

    def of_data(self) -> PosteriorAtLevel:
        """Return the posterior of the data, which is the posterior at the smallest noise level."""
        return PosteriorAtLevel(self, self.noise_range.t_min)


class PosteriorAtLevel(_OfInputs):
    """The posterior q(h|v) at one noise level, which shares the parameters of a posterior at every level.

    Args:
        posterior: The posterior of w = (v~, log t).
        level: The level t, a variance in the squared units of v.

    Example:
        >>> from eblvm_lit.posteriors.gaussian import LinearGaussianPosterior
        >>> PosteriorAtLevel(LinearGaussianPosterior(v_dim=3, h_dim=4), 0.01).mean(torch.zeros(5, 2)).shape
        torch.Size([5, 4])
    """

    def __init__(self, posterior: Posterior, level: float) -> None:
        super().__init__(posterior)
        self.level = level

    def inputs(self, v: Tensor) -> Tensor:
        """Flatten v (B, *event) and append the logarithm of the noise level, shape (B, n + 1)."""
        return at_level(v, self.level)
