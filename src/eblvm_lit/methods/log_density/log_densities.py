"""Log-densities up to log Z: the exact log-density, and a lower bound that uses latents from a posterior."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, cast

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from eblvm_lit.divergences.base import Divergence
from eblvm_lit.divergences.kl import importance_weighted_bound
from eblvm_lit.energies.base import Energy, MarginalEnergy
from eblvm_lit.errors import ConfigError
from eblvm_lit.optimizers.base import Optimizer
from eblvm_lit.posteriors.base import Posterior

__all__ = ["ExactLogDensity", "LogDensity", "LogDensityBound", "bound_or_exact"]


class LogDensity(ABC):
    r"""The unnormalised log-density :math:`\log \tilde p(v) = \log p(v) + \log Z = -F(v)`, or an estimate of it.

    The losses of this folder evaluate it at the data v and at other points y, which are samples of a noise
    distribution or perturbed data. If the estimate needs a posterior, the method fits it, see
    :meth:`~eblvm_lit.methods.loss_method.LossMethod.fit_posterior`.

    Attributes:
        lower_level: The arguments of ``fit_posterior``, by name; the posterior is None if the log-density needs only
            the energy.
        words: The log-density's numbers of particles and steps, for the first line that a run prints.
    """

    lower_level: Mapping[str, Any] = {"posterior": None, "divergence": None, "n_lower_steps": 0}
    words = ""

    def check(self, energy: Energy) -> None:  # noqa: B027 - a bound fits every energy
        """Raise a ConfigError if this log-density cannot be computed for the energy.

        Raises:
            ConfigError: If the log-density cannot be computed. The message says which methods can train the energy.
        """

    def noise(self, v: Tensor, y: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw the random numbers that :meth:`pair` needs for data v (B, *event) and points y (n B, *event).

        By default no random numbers are needed.
        """
        return {}

    @abstractmethod
    def __call__(self, energy: Energy, posterior: Posterior | None, v: Tensor, noise: Any) -> Tensor:
        """Compute the log-density at v (B, *event), shape (B,)."""

    def pair(
        self, energy: Energy, posterior: Posterior | None, v: Tensor, y: Tensor, noise: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """Compute the log-densities at data v (B, *event), shape (B,), and at points y (n B, *event), shape (n B,)."""
        at_v = self(energy, posterior, v, noise.get("at_data"))
        return at_v, self(energy, posterior, y, noise.get("at_others"))


class ExactLogDensity(LogDensity):
    """The exact log-density -F(v), for an energy whose latents can be summed or integrated out.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> ExactLogDensity()(GRBM(v_dim=2, h_dim=3), None, torch.zeros(5, 2), None).shape
        torch.Size([5])
    """

    def check(self, energy: Energy) -> None:
        """Raise a ConfigError if the free energy is not tractable."""
        if not isinstance(energy, MarginalEnergy):
            raise ConfigError(
                f"{type(energy).__name__} has no tractable free energy: use method=vnce, vsnl or ed_latent, which "
                "estimate it by a posterior and a divergence."
            )

    def __call__(self, energy: MarginalEnergy, posterior: None, v: Tensor, noise: None) -> Tensor:
        """Compute the log-density -F(v), shape (B,)."""
        return -energy.free_energy(v)


class LogDensityBound(LogDensity):
    r"""The importance-weighted lower bound on the log-density, with latents sampled from a fitted posterior.

    .. math:: \log \frac1L \sum_{l=1}^L \frac{\exp(-E(v, h_l))}{q(h_l|v)} \le -F(v) \text{ in the mean},
        \quad h_l \sim q(h|v)

    The mean of the importance weights is exp(-F(v)) for every q. The mean of the bound is below -F(v): by
    KL(q(h|v) || p(h|v)) with one particle, and by about :math:`\chi^2(p(h|v) \| q(h|v)) / (2 L)` with many. If
    q(h|v) = p(h|v), the weights are constant in h, and the bound is -F(v) for every L. Reference: Burda et al. 2016,
    Eq. 8.

    Args:
        posterior: The posterior q(h|v; phi).
        divergence: The divergence of q from p that the lower level minimises.
        n_lower_steps: The number K of steps on phi in each iteration.
        n_particles: The number L of particles at each point y.
        n_at_data: The number of particles at each example v; with one, the bound is the evidence lower bound.
        relaxed: Whether binary h are relaxed samples of q instead of bits. Relaxed samples change the mean of the
            weights.
        lower_optimizer: The optimizer of phi in the lower level; that of the upper level if not given.

    Example:
        >>> from eblvm_lit.divergences.kl import KL
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.posteriors.bernoulli import BernoulliPosterior
        >>> p, q, v = GRBM(v_dim=2, h_dim=3), BernoulliPosterior(v_dim=2, h_dim=3), torch.zeros(5, 2)
        >>> bound = LogDensityBound(posterior=q, divergence=KL(), n_particles=7)
        >>> noise = bound.noise(v, torch.zeros(10, 2), torch.Generator())
        >>> [tuple(x.shape) for x in noise.values()], bound(p, q, v, noise["at_data"]).shape
        ([(1, 5, 3), (7, 10, 3)], torch.Size([5]))
    """

    def __init__(
        self,
        *,
        posterior: Posterior,
        divergence: Divergence,
        n_lower_steps: NonNegativeInt = 5,
        n_particles: PositiveInt = 5,
        n_at_data: PositiveInt = 1,
        relaxed: bool = False,
        lower_optimizer: Optimizer | None = None,
    ) -> None:
        lower = {"n_lower_steps": n_lower_steps, "lower_optimizer": lower_optimizer}
        self.lower_level = {"posterior": posterior, "divergence": divergence, **lower}
        self.posterior = posterior
        self.n_particles = n_particles
        self.n_at_data = n_at_data
        self.relaxed = relaxed
        self.words = f", L = {n_particles}, K = {n_lower_steps}"

    def noise(self, v: Tensor, y: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw the noise of the latents at data v (B, *event) and at other points y (n B, *event).

        Only the number of points y matters, not their values.
        """
        at_data = self.posterior.noise((self.n_at_data,), v, generator)
        return {"at_data": at_data, "at_others": self.posterior.noise((self.n_particles,), y, generator)}

    def __call__(self, energy: Energy, posterior: Posterior, v: Tensor, noise: Tensor) -> Tensor:
        """Compute the lower bound on the log-density at v (B, *event) with noise (L, B, H), shape (B,)."""
        draw = posterior.rsample_and_log_prob if self.relaxed else posterior.sample_and_log_prob
        return -importance_weighted_bound(energy, v, *draw(v, noise))


def bound_or_exact(posterior: Posterior | None, divergence: Divergence | None, **options: Any) -> LogDensity:
    """Return a :class:`LogDensityBound` with the given options, or the exact log-density if there is no posterior.

    Example:
        >>> type(bound_or_exact(None, None, n_particles=5)).__name__
        'ExactLogDensity'
    """
    if posterior is None and divergence is None:
        return ExactLogDensity()
    return LogDensityBound(posterior=cast(Posterior, posterior), divergence=cast(Divergence, divergence), **options)
