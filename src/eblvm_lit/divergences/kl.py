"""Kullback-Leibler divergence: the evidence bound and its importance-weighted form."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from eblvm_lit.divergences.base import Divergence
from eblvm_lit.energies.base import Energy
from eblvm_lit.posteriors.base import Posterior

__all__ = ["IWAE", "KL", "importance_weighted_bound"]


class KL(Divergence):
    r"""KL(q(h|v) || p(h|v)) up to log p(v) + log Z: the negative evidence bound.

    .. math:: G(v) = E_{q(h|v)} [\log q(h|v) + E(v, h)]

    Reference: Bao et al. 2020, Eq. 10. One reparametrised (relaxed) particle by default, as published.

    Example:
        >>> from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
        >>> from eblvm_lit.posteriors.gaussian import LinearGaussianPosterior
        >>> p, q = GaussianLatentModel(v_dim=2, h_dim=3), LinearGaussianPosterior(v_dim=2, h_dim=3)
        >>> v = torch.zeros(5, 2)
        >>> KL().loss(p, q, v, q.noise((1,), v, torch.Generator())).shape
        torch.Size([5])
    """

    curved_as_information = True

    def loss(self, energy: Energy, posterior: Posterior, v: Tensor, noise: Tensor) -> Tensor:
        """The bound's estimate, shape (B,)."""
        q_params = posterior.distribution_params(v)
        h = posterior.rsample_given(q_params, noise)
        return (posterior.log_prob_given(q_params, h) + energy.energy(v, h)).mean(0)


class IWAE(Divergence):
    r"""The importance-weighted bound with L particles; L = 1 is :class:`KL`.

    .. math:: -\log \frac1L \sum_{l=1}^L \exp(-E(v, h_l) - \log q(h_l|v)), \quad h_l \sim q(h|v)

    Reference: Burda et al. 2016, Eq. 8, an option of Bao et al. 2020's code.

    Example:
        >>> from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
        >>> from eblvm_lit.posteriors.gaussian import LinearGaussianPosterior
        >>> p, q = GaussianLatentModel(v_dim=2, h_dim=3), LinearGaussianPosterior(v_dim=2, h_dim=3)
        >>> v = torch.zeros(5, 2)
        >>> IWAE(n_particles=20).loss(p, q, v, q.noise((20,), v, torch.Generator())).shape
        torch.Size([5])
    """

    def loss(self, energy: Energy, posterior: Posterior, v: Tensor, noise: Tensor) -> Tensor:
        """The negative bound's estimate, shape (B,)."""
        return importance_weighted_bound(energy, v, *posterior.rsample_and_log_prob(v, noise))


def importance_weighted_bound(energy: Energy, v: Tensor, h: Tensor, log_q: Tensor) -> Tensor:
    r""":math:`-\log \frac1L \sum_{l=1}^L \exp(-E(v, h_l) - \log q(h_l|v))`, at least F(v) on average.

    Reference: Burda et al. 2016, Eq. 8.

    Args:
        energy: The model.
        v: Shape (B, *event).
        h: Draws of q(h|v), shape (L, B, H).
        log_q: log q(h|v), shape (L, B).

    Returns:
        Shape (B,).

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> p, v = GRBM(v_dim=2, h_dim=3), torch.zeros(5, 2)
        >>> importance_weighted_bound(p, v, torch.zeros(7, 5, 3), torch.zeros(7, 5)).shape
        torch.Size([5])
    """
    return math.log(len(h)) - torch.logsumexp(-energy.energy(v, h) - log_q, 0)
