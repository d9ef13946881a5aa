"""The surrogate score of bi-level score matching: the score of -E - log q at one latent of each v."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from eblvm_lit.core.functional import grad
from eblvm_lit.energies.base import Energy, EnergyAt, LatentEnergy
from eblvm_lit.posteriors.base import DistributionParams, Posterior
from eblvm_lit.scores.base import ScoreEstimator

__all__ = ["Bilevel", "BilevelScore", "Refinement"]

# (v, E(v, .), the parameters of q(h|v)) -> the parameters of another distribution in q's family
Refinement = Callable[[Tensor, LatentEnergy, DistributionParams], DistributionParams]


class BilevelScore:
    r"""The score of the marginal as estimated with one posterior sample.

    .. math:: \hat s(x) = \nabla_x [-E(x, h) - \log q(h|x)], \quad h \sim q(h|v)

    h does not move with x: it is drawn at v, once, and held; the density of q does move. Equal to the marginal score
    for every h when q is the true posterior. Reference: Bao et al. 2020, Eq. 8.

    Args:
        energy: Gives E.
        posterior: Gives q.
        v: Where h is drawn, shape (B, *event).
        noise: Noise of one latent per example, shape (B, H).
        refine: Moves q(h|v) before it is used, at every v; q as it is if not given.

    Example:
        >>> import torch
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.posteriors.bernoulli import BernoulliPosterior
        >>> p, q, v = GRBM(v_dim=2, h_dim=3), BernoulliPosterior(v_dim=2, h_dim=3), torch.zeros(5, 2)
        >>> BilevelScore(p, q, v, q.noise((), v, torch.Generator()))(v).shape
        torch.Size([5, 2])
    """

    def __init__(
        self, energy: Energy, posterior: Posterior, v: Tensor, noise: Tensor, refine: Refinement | None = None
    ) -> None:
        self.energy, self.posterior, self.refine = energy, posterior, refine
        q_params = posterior.distribution_params(v)
        if refine is not None:
            q_params = refine(v, energy.at(v), q_params)
        self.h = posterior.rsample_given(q_params, noise)

    def __call__(self, x: Tensor) -> Tensor:
        """The surrogate, shape (B, *event)."""

        def log_weight(at: EnergyAt, y: Tensor) -> Tensor:
            q_params = self.posterior.distribution_params(y)
            energy = at(y)
            if self.refine is not None:
                q_params = self.refine(y, energy, q_params)
            return (-energy(self.h) - self.posterior.log_prob_given(q_params, self.h)).sum()

        if self.refine is None and self.energy.passed is None:  # E at one h alone
            return grad(partial(log_weight, partial(partial, self.energy.energy)))(x)
        return self.energy.gradient(log_weight, x)


class Bilevel(ScoreEstimator):
    """The bi-level score, for any energy with latents and any posterior of them.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.posteriors.bernoulli import BernoulliPosterior
        >>> p, q, v = GRBM(v_dim=2, h_dim=3), BernoulliPosterior(v_dim=2, h_dim=3), torch.zeros(5, 2)
        >>> Bilevel().function(p, q, v, Bilevel().noise(p, q, v, torch.Generator()))(v).shape
        torch.Size([5, 2])
    """

    words = "bi-level score"
    needs_posterior = True

    def check(self, energy: Energy) -> None:
        """Refuse nothing: the posterior is checked against the energy where it is fitted."""

    def noise(self, energy: Energy, posterior: Posterior, v: Tensor, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        """Noise of one latent per example, shape (B, H)."""
        return posterior.noise((), v, generator)

    def function(self, energy: Energy, posterior: Posterior, v: Tensor, noise: Tensor) -> BilevelScore:
        """The surrogate score with h drawn at v."""
        return BilevelScore(energy, posterior, v, noise)
