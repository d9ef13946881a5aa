r"""The variational estimates of the marginal score and of its theta-gradient.

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

# The particle sets of the score, the mean and the covariance.
SETS = {"separate": (0, 1, 2), "coupled": (0, 1, 1), "shared": (0, 0, 0)}


class Estimate(ABC):
    """How the score is estimated from particles.

    Attributes:
        needs_posterior: Whether it uses the density of q, and takes the particles to be distributed as q(h|v).
    """

    needs_posterior = False

    @abstractmethod
    def __call__(self, energy: Energy, posterior: Posterior | None, v: Tensor, h: Tensor) -> Tensor:
        """The estimate, shape (B, *event), of v (B, *event) and particles h (L, B, H)."""


class VaES(Estimate):
    r"""The variational estimate of the score: :math:`\frac1L \sum_l \nabla_v \ell(v, h_l)`.

    Reference: Bao et al. 2021, section 3.1.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> VaES()(GRBM(v_dim=2, h_dim=3), None, torch.zeros(5, 2), torch.zeros(7, 5, 3)).shape
        torch.Size([5, 2])
    """

    def __call__(self, energy: Energy, posterior: Posterior | None, v: Tensor, h: Tensor) -> Tensor:
        """The estimate, shape (B, *event)."""
        return energy.gradient(lambda at, x: -at(x)(h).mean(0).sum(), v)


class ControlledVaES(Estimate):
    r"""VaES with the score of q as a control variate: :math:`\frac1L \sum_l \nabla_v [\ell(v, h_l) - \log q(h_l|v)]`.

    h does not move with v. The mean of the second term is zero for h ~ q, whatever q is, and where q = p the estimate
    has no variance: it is the score for every h. Reference: Bao et al. 2021, appendix F.5.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.posteriors.bernoulli import BernoulliPosterior
        >>> p, q = GRBM(v_dim=2, h_dim=3), BernoulliPosterior(v_dim=2, h_dim=3)
        >>> ControlledVaES()(p, q, torch.zeros(5, 2), torch.zeros(7, 5, 3)).shape
        torch.Size([5, 2])
    """

    needs_posterior = True

    def __call__(self, energy: Energy, posterior: Posterior, v: Tensor, h: Tensor) -> Tensor:
        """The estimate, shape (B, *event)."""

        def log_weight(at: EnergyAt, x: Tensor) -> Tensor:
            return (-at(x)(h) - posterior.log_prob(h, x)).mean(0).sum()

        return energy.gradient(log_weight, v)


class Covariance(ABC):
    """The weights by which particles enter a sample covariance: Cov(s, l) = sum_l w_l l_l.

    Attributes:
        min_particles: Fewest particles it is defined for.
    """

    min_particles = 1

    @abstractmethod
    def weights(self, s: Tensor) -> Tensor:
        """w, shape (L, ...), of the values s (L, ...)."""


class Unbiased(Covariance):
    """Centred weights of the unbiased sample covariance: (s_l - mean s) / (L - 1).

    Example:
        >>> Unbiased().weights(torch.tensor([1.0, 3.0]))
        tensor([-1.,  1.])
    """

    min_particles = 2

    def weights(self, s: Tensor) -> Tensor:
        """w, shape (L, ...)."""
        return (s - s.mean(0)) / (len(s) - 1)


class Biased(Covariance):
    """Centred weights of the biased sample covariance: (s_l - mean s) / L.

    Example:
        >>> Biased().weights(torch.tensor([1.0, 3.0]))
        tensor([-0.5000,  0.5000])
    """

    min_particles = 2

    def weights(self, s: Tensor) -> Tensor:
        """w, shape (L, ...)."""
        return (s - s.mean(0)) / len(s)


class Dropped(Covariance):
    """No weight at all: an ablation, the theta-gradient without its covariance term.

    Example:
        >>> Dropped().weights(torch.tensor([1.0, 3.0]))
        tensor([0., 0.])
    """

    def weights(self, s: Tensor) -> Tensor:
        """Zeros, shape (L, ...)."""
        return torch.zeros_like(s)


def vages_product(energy: Energy, v: Tensor, z: Tensor, h: Tensor, h_cov: Tensor, covariance: Covariance) -> Tensor:
    r"""A number per example whose theta-gradient is :math:`\mathrm{VaGES}(v)^\top z`; its value means nothing.

    .. math:: \frac1L \sum_l z^\top \nabla_v \ell(v, h_l) + \sum_l w_l\, \ell(v, h''_l), \quad
        w_l = \frac{s_l - \bar s}{L - 1}, \; s_l = z^\top \nabla_v \ell(v, h''_l) \text{ held constant}

    All directional derivatives are one forward-mode pass: what the energy computes of v alone is computed once, or not
    here where an iteration shares it; see :meth:`~eblvm_lit.energies.base.Energy.share_features`.

    Args:
        energy: The model as a function of theta, which is differentiated outside.
        v: Shape (B, *event).
        z: Cotangent of the score, shape (B, *event); a constant.
        h: Particles of the mean, shape (L, B, H).
        h_cov: Particles of the covariance, shape (L, B, H).
        covariance: Gives the weights w.

    Returns:
        Shape (B,).

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> v, h = torch.ones(5, 2), torch.rand(7, 5, 3)
        >>> vages_product(GRBM(v_dim=2, h_dim=3), v, v, h, h, Unbiased()).shape
        torch.Size([5])
    """
    # one set for both, where they are the same
    both = h if h is h_cov else torch.cat([h, h_cov])
    value, slope = energy.slope(lambda energy_at_v: -energy_at_v(both), v, z.detach())
    n = len(h_cov)
    weights = covariance.weights(slope[-n:].detach())
    return slope[: len(h)].mean(0) + (weights * value[-n:]).sum(0)


class VariationalFunction:
    """VaES as a score function, and VaGES as the theta-gradient of a product with it.

    Particles are drawn once. With separate sets the product of the two estimates is unbiased where they are.

    Args:
        estimator: Says how the score and the covariance are estimated.
        energy: Gives E.
        posterior: Gives q; None where the particles come from p(h|v) itself.
        sets: Particles of the score, the mean and the covariance, each of shape (L, B, H).

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
        """VaES, shape (B, *event)."""
        return self.estimator.estimate(self.energy, self.posterior, x, self.h)

    def product(self, energy: Energy, x: Tensor, z: Tensor) -> Tensor:
        """A number per example, shape (B,), whose theta-gradient is VaGES(x)' z; see :func:`vages_product`.

        Args:
            energy: The model as a function of the theta that is differentiated.
            x: Shape (B, *event).
            z: The objective's derivative by the score, shape (B, *event); a constant.
        """
        return vages_product(energy, x, z, self.h_mean, self.h_cov, self.estimator.covariance)


class VariationalScore(ScoreEstimator):
    r"""VaES and VaGES from particles of one source, in three sets: for the score, for the mean, for the covariance.

    With separate sets the product of the two estimates is unbiased where they are.

    Args:
        n_particles: L, of each set.
        particles: Where latents come from; q(h|v) if not given.
        estimate: Of the score; :class:`VaES` if not given. It does not enter the theta-gradient but through z.
        covariance: Of the theta-gradient; :class:`Unbiased` if not given.
        sets: ``separate``; ``coupled``, where mean and covariance share one; ``shared``, where all do.

    Raises:
        ConfigError: For fewer particles than the covariance needs, or parts that do not fit together.

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
        self.has_smooth = self.needs_posterior

    def check(self, energy: Energy) -> None:
        """Refuse an energy whose particles cannot be drawn.

        Raises:
            ConfigError: Saying which can.
        """
        self.particles.check(energy)

    def noise(self, energy: Energy, posterior: Posterior | None, v: Tensor, generator: torch.Generator) -> Any:
        """Noise of all sets at v, shape (B, *event)."""
        n_sets = max(self.sets) + 1
        return self.particles.noise(energy, posterior, (n_sets * self.n_particles,), v, generator)

    def function(self, energy: Energy, posterior: Posterior | None, v: Tensor, noise: Any) -> VariationalFunction:
        """VaES and VaGES with particles drawn at v, all sets in one pass."""
        drawn = self.particles.draw(energy, posterior, v, noise).split(self.n_particles)
        return VariationalFunction(self, energy, posterior, tuple(drawn[i] for i in self.sets))

    def smooth(self, energy: Energy, posterior: Posterior, v: Tensor) -> Tensor:
        """VaES at the mean of q, shape (B, *event); a derivative by v goes through that mean, too."""
        return VaES()(energy, posterior, v, posterior.mean(v).unsqueeze(0))
