"""The surrogate score of bi-level score matching: the v-gradient of -E - log q at one sampled latent for each v."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from eblvm_lit.core.functional import grad
from eblvm_lit.energies.base import Energy, EnergyAt, LatentEnergy
from eblvm_lit.posteriors.base import DistributionParams, Posterior

__all__ = ["BilevelScore", "Refinement"]

# A function that refines q(h|v). It maps v, the energy E(v, .) as a function of h, and the parameters of q(h|v) to the
# parameters of another distribution in q's family.
Refinement = Callable[[Tensor, LatentEnergy, DistributionParams], DistributionParams]


class BilevelScore:
    r"""A surrogate of the marginal score, computed from one sample of the posterior q(h|v) for each v.

    .. math:: \hat s(x) = \nabla_x [-E(x, h) - \log q(h|x)], \quad h \sim q(h|v)

    h is drawn once, from q(h|v), and is constant in x; the density q(h|x) is differentiated in x. If q is the true
    posterior, the surrogate equals the marginal score for every h. Reference: Bao et al. 2020, Eq. 8.

    Args:
        energy: The model's energy E(v, h).
        posterior: The posterior q(h|v).
        v: The points at which h is drawn, shape (B, *event).
        noise: The noise from which one latent is drawn for each example, shape (B, H).
        refine: A function that maps q(h|v) at each v to the distribution that is used in its place; q itself if not
            given.

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
        self.energy = energy
        self.posterior = posterior
        self.refine = refine
        q_params = posterior.distribution_params(v)
        if refine is not None:
            q_params = refine(v, energy.at(v), q_params)
        self.h = posterior.rsample_given(q_params, noise)

    def __call__(self, x: Tensor) -> Tensor:
        """Compute the surrogate score at x, shape (B, *event)."""

        def log_weight(at: EnergyAt, y: Tensor) -> Tensor:
            q_params = self.posterior.distribution_params(y)
            energy = at(y)
            if self.refine is not None:
                q_params = self.refine(y, energy, q_params)
            return (-energy(self.h) - self.posterior.log_prob_given(q_params, self.h)).sum()

        if (
            self.refine is None and self.energy.shared_features is None
        ):  # with only one h for each v, energy.energy is cheaper than energy.at
            return grad(partial(log_weight, lambda y: partial(self.energy.energy, y)))(x)
        return self.energy.gradient(log_weight, x)
