r"""The variational estimates of the marginal score and of its gradient with respect to theta.

With :math:`\ell = -E` and :math:`h_1, \dots, h_L \sim q(h|v)`:

.. math::
    \mathrm{VaES}(v) = \frac1L \sum_l \nabla_v \ell(v, h_l), \quad
    \mathrm{VaGES}(v) = \widehat{\mathrm{Cov}}(\nabla_v \ell, \nabla_\theta \ell)
        + \frac1L \sum_l \frac{\partial \nabla_v \ell(v, h_l)}{\partial \theta}

Both are unbiased where q(h|v) = p(h|v). Reference: Bao et al. 2021, section 3.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor

from eblvm_lit.energies.base import Energy, EnergyAt
from eblvm_lit.errors import ConfigError
from eblvm_lit.posteriors.base import Posterior
from eblvm_lit.scores.base import ScoreEstimator
from eblvm_lit.scores.particles import Particles, PosteriorParticles

__all__ = [
    "Biased",
    "ControlledVaES",
    "Covariance",
    "Dropped",
    "Estimate",
    "Unbiased",
    "VaES",
    "VariationalFunction",
    "VariationalScore",
    "vages_product",
]

# For each value of the argument ``sets``: the indices of the particle sets that the score, the mean term of VaGES and
# the covariance term of VaGES use.
SETS = {"separate": (0, 1, 2), "coupled": (0, 1, 1), "shared": (0, 0, 0)}


class Estimate(ABC):
    """A rule that estimates the score from particles, which are sampled latents.

    Attributes:
        needs_posterior: Whether the rule uses the density of q and assumes that the particles are distributed as
            q(h|v).
    """

    needs_posterior = False

    @abstractmethod
    def __call__(self, energy: Energy, posterior: Posterior | None, v: Tensor, h: Tensor) -> Tensor:
        """Estimate the score at v (B, *event) from particles h (L, B, H), shape (B, *event)."""


class VaES(Estimate):
    r"""The variational estimate of the score, :math:`-\frac1L \sum_l \nabla_v E(v, h_l)` with h_l drawn from q(h|v).

    Reference: Bao et al. 2021, section 3.1.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> VaES()(GRBM(v_dim=2, h_dim=3), None, torch.zeros(5, 2), torch.zeros(7, 5, 3)).shape
        torch.Size([5, 2])
    """

    def __call__(self, energy: Energy, posterior: Posterior | None, v: Tensor, h: Tensor) -> Tensor:
        """Estimate the score at v from the particles h, shape (B, *event)."""
        return energy.gradient(lambda at, x: -at(x)(h).mean(0).sum(), v)


class ControlledVaES(Estimate):
    r"""The estimate VaES with a control variate: :math:`-\frac1L \sum_l \nabla_v [E(v, h_l) + \log q(h_l|v)]`.

    The latents h_l are constant in v. The control variate is the v-gradient of log q, whose mean over h ~ q is zero for
    every q. If q(h|v) = p(h|v), the estimate equals the score for every h, so its variance is zero. Reference: Bao et
    al. 2021, appendix F.5.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.posteriors.bernoulli import BernoulliPosterior
        >>> p, q = GRBM(v_dim=2, h_dim=3), BernoulliPosterior(v_dim=2, h_dim=3)
        >>> ControlledVaES()(p, q, torch.zeros(5, 2), torch.zeros(7, 5, 3)).shape
        torch.Size([5, 2])
    """

    needs_posterior = True

    def __call__(self, energy: Energy, posterior: Posterior, v: Tensor, h: Tensor) -> Tensor:
        """Estimate the score at v from the particles h, shape (B, *event)."""

        def log_weight(at: EnergyAt, x: Tensor) -> Tensor:
            return (-at(x)(h) - posterior.log_prob(h, x)).mean(0).sum()

        return energy.gradient(log_weight, v)


class Covariance(ABC):
    """A rule for particle weights w_l such that sum_l w_l x_l estimates the covariance of values s_l and x_l.

    Attributes:
        min_particles: The smallest number of particles for which the weights are defined.
    """

    min_particles = 1

    @abstractmethod
    def weights(self, s: Tensor) -> Tensor:
        """Compute the particle weights w_l, shape (L, ...), from the values s_l at the L particles, shape (L, ...)."""


class Unbiased(Covariance):
    """The weights of the unbiased sample covariance for L values s_l: (s_l - mean s) / (L - 1).

    Example:
        >>> Unbiased().weights(torch.tensor([1.0, 3.0]))
        tensor([-1.,  1.])
    """

    min_particles = 2

    def weights(self, s: Tensor) -> Tensor:
        """Compute the particle weights w_l, shape (L, ...), from the values s_l."""
        return (s - s.mean(0)) / (len(s) - 1)


class Biased(Covariance):
    """The weights of the biased sample covariance for L values s_l: (s_l - mean s) / L.

    Example:
        >>> Biased().weights(torch.tensor([1.0, 3.0]))
        tensor([-0.5000,  0.5000])
    """

    min_particles = 2

    def weights(self, s: Tensor) -> Tensor:
        """Compute the particle weights w_l, shape (L, ...), from the values s_l."""
        return (s - s.mean(0)) / len(s)


class Dropped(Covariance):
    """An ablation in which all particle weights are zero, so that the theta-gradient has no covariance term.

    Example:
        >>> Dropped().weights(torch.tensor([1.0, 3.0]))
        tensor([0., 0.])
    """

    def weights(self, s: Tensor) -> Tensor:
        """Return the weight zero for every particle, shape (L, ...)."""
        return torch.zeros_like(s)


def vages_product(energy: Energy, v: Tensor, z: Tensor, h: Tensor, h_cov: Tensor, covariance: Covariance) -> Tensor:
    r"""Compute a scalar for each example whose theta-gradient is :math:`\mathrm{VaGES}(v)^\top z` for given vectors z.

    .. math:: \frac1L \sum_l z^\top \nabla_v \ell(v, h_l) + \sum_l w_l\, \ell(v, h''_l), \quad
        w_l = \frac{s_l - \bar s}{L - 1}, \; s_l = z^\top \nabla_v \ell(v, h''_l) \text{ held constant}

    Only the gradient of the scalar has a meaning; its value has none. One forward-mode pass computes all directional
    derivatives. Features of v that do not depend on h are computed only once for all particles, or not at all if the
    iteration shares them; see :meth:`~eblvm_lit.energies.base.Energy.share_features`.

    Args:
        energy: The model, bound to the theta that the caller differentiates.
        v: The points, shape (B, *event).
        z: The vector that multiplies the score's theta-gradient, a constant of shape (B, *event).
        h: The particles of the mean term, shape (L, B, H).
        h_cov: The particles h'' of the covariance term, shape (L, B, H).
        covariance: The rule for the weights w.

    Returns:
        The scalar for each example, shape (B,).

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> v, h = torch.ones(5, 2), torch.rand(7, 5, 3)
        >>> vages_product(GRBM(v_dim=2, h_dim=3), v, v, h, h, Unbiased()).shape
        torch.Size([5])
    """
    # If the mean term and the covariance term share their particles, the energy is evaluated only once at these
    # particles.
    both = h if h is h_cov else torch.cat([h, h_cov])
    value, slope = energy.slope(lambda energy_at_v: -energy_at_v(both), v, z.detach())
    n = len(h_cov)
    weights = covariance.weights(slope[-n:].detach())
    return slope[: len(h)].mean(0) + (weights * value[-n:]).sum(0)


class VariationalFunction:
    """A score function with fixed particles, which estimates the score by VaES.

    It also multiplies the score's theta-gradient, estimated by VaGES, by a vector. If the particle sets are separate,
    the product of VaES and VaGES is unbiased whenever each of the two is.

    Args:
        estimator: The estimator, which says how the score and the covariance are estimated.
        energy: The model's energy E(v, h).
        posterior: The posterior q(h|v); None if the particles come from p(h|v) itself.
        sets: The particles of the score, of the mean term and of the covariance term, each of shape (L, B, H).

    Attributes:
        h: The particles of the score, shape (L, B, H).
    """

    def __init__(
        self, estimator: VariationalScore, energy: Energy, posterior: Posterior | None, sets: tuple[Tensor, ...]
    ) -> None:
        self.estimator = estimator
        self.energy = energy
        self.posterior = posterior
        self.h, self.h_mean, self.h_cov = sets

    def __call__(self, x: Tensor) -> Tensor:
        """Compute the score estimate VaES at x, shape (B, *event)."""
        return self.estimator.estimate(self.energy, self.posterior, x, self.h)

    def product(self, energy: Energy, x: Tensor, z: Tensor) -> Tensor:
        """Compute a scalar for each example, shape (B,), whose theta-gradient is VaGES(x)^T z for the given vectors z.

        See :func:`vages_product`.

        Args:
            energy: The model, bound to the theta that the caller differentiates.
            x: The points, shape (B, *event).
            z: The derivative of the objective with respect to the score, a constant of shape (B, *event).
        """
        return vages_product(energy, x, z, self.h_mean, self.h_cov, self.estimator.covariance)


class VariationalScore(ScoreEstimator):
    r"""An estimator that computes the score by VaES and the score's theta-gradient by VaGES.

    It uses three sets of particles: for the score, for the mean term and for the covariance term of VaGES. If the sets
    are separate, the product of VaES and VaGES is unbiased whenever each of the two is.

    Args:
        n_particles: The number L of particles in each set, for each v.
        particles: The source of the latents; q(h|v) if not given.
        estimate: The rule that estimates the score; :class:`VaES` if not given. It enters the theta-gradient only
            through z, the derivative of the objective at the estimated score.
        covariance: The rule for the weights of the covariance term; :class:`Unbiased` if not given.
        sets: ``separate`` for three sets; ``coupled`` for one set that the mean and the covariance share; ``shared``
            for one set that all three share.

    Raises:
        ConfigError: If there are fewer particles than the covariance needs, or if ``estimate`` and
            ``particles`` are incompatible.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.posteriors.bernoulli import BernoulliPosterior
        >>> p, q, v = GRBM(v_dim=2, h_dim=3), BernoulliPosterior(v_dim=2, h_dim=3), torch.zeros(5, 2)
        >>> score = VariationalScore(n_particles=2)
        >>> vaes = score.function(p, q, v, score.noise(p, q, v, torch.Generator()))
        >>> z = vaes(v)
        >>> vaes.h.shape, z.shape, vaes.product(p, v, z).shape
        (torch.Size([2, 5, 3]), torch.Size([5, 2]), torch.Size([5]))
    """

    words = "variational estimates"

    def __init__(
        self,
        *,
        n_particles: PositiveInt = 2,
        particles: Particles | None = None,
        estimate: Estimate | None = None,
        covariance: Covariance | None = None,
        sets: Literal["separate", "coupled", "shared"] = "separate",
    ) -> None:
        self.particles: Particles = particles or PosteriorParticles()
        self.estimate: Estimate = estimate or VaES()
        self.covariance: Covariance = covariance or Unbiased()
        if n_particles < self.covariance.min_particles:
            raise ConfigError(
                f"An {type(self.covariance).__name__.lower()} covariance needs "
                f"n_particles (L) >= {self.covariance.min_particles}, not {n_particles}: "
                "raise score.n_particles, or use covariance=none."
            )
        if self.estimate.needs_posterior and not self.particles.follow_posterior:
            raise ConfigError(
                f"{type(self.estimate).__name__} is for latents that are distributed as q, and those of "
                f"{type(self.particles).__name__} are not: use estimate=vaes or particles=posterior."
            )
        self.n_particles = n_particles
        self.sets = SETS[sets]
        self.needs_posterior = self.particles.needs_posterior

    def check(self, energy: Energy) -> None:
        """Raise a ConfigError if the source of particles cannot sample the latents of this energy.

        Raises:
            ConfigError: If the source does not support the energy. The message names sources that support it.
        """
        self.particles.check(energy)

    def noise(self, energy: Energy, posterior: Posterior | None, v: Tensor, generator: torch.Generator) -> Any:
        """Draw the noise for all particle sets at v (B, *event)."""
        n_sets = max(self.sets) + 1
        return self.particles.noise(energy, posterior, (n_sets * self.n_particles,), v, generator)

    def function(self, energy: Energy, posterior: Posterior | None, v: Tensor, noise: Any) -> VariationalFunction:
        """Draw all particle sets given v in one pass, and return the estimates VaES and VaGES with these particles."""
        drawn = self.particles.draw(energy, posterior, v, noise).split(self.n_particles)
        return VariationalFunction(self, energy, posterior, tuple(drawn[i] for i in self.sets))

    def smooth(self, energy: Energy, posterior: Posterior, v: Tensor) -> Tensor:
        """Compute VaES with the mean of q(h|v) as the only particle, shape (B, *event).

        A derivative with respect to v also goes through this mean.
        """
        return VaES()(energy, posterior, v, posterior.mean(v).unsqueeze(0))
