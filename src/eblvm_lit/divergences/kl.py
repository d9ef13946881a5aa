"""The Kullback-Leibler divergence: the negative evidence lower bound and its importance-weighted form."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from eblvm_lit.divergences.base import Divergence
from eblvm_lit.energies.base import Energy
from eblvm_lit.posteriors.base import Posterior

__all__ = ["IWAE", "KL", "importance_weighted_bound"]


class KL(Divergence):
    r"""The divergence KL(q(h|v) || p(h|v)) up to a function of v, computed as the negative evidence lower bound.

    .. math:: G(v) = E_{q(h|v)} [\log q(h|v) + E(v, h)] = KL(q(h|v) \| p(h|v)) - \log p(v) - \log Z

    Reference: Bao et al. 2020, Eq. 10. The default is the paper's choice: one reparametrised latent for each v, which
    is relaxed if the latents are binary.

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
        """Estimate the negative evidence lower bound of each example without the constant log Z, shape (B,)."""
        q_params = posterior.distribution_params(v)
        h = posterior.rsample_given(q_params, noise)
        return (posterior.log_prob_given(q_params, h) + energy.energy(v, h)).mean(0)


class IWAE(Divergence):
    r"""The negative importance-weighted lower bound with L particles, which is equal to :class:`KL` for L = 1.

    .. math:: -\log \frac1L \sum_{l=1}^L \exp(-E(v, h_l) - \log q(h_l|v)), \quad h_l \sim q(h|v)

    Reference: Burda et al. 2016, Eq. 8. The code of Bao et al. 2020 has it as an option.

    Example:
        >>> from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
        >>> from eblvm_lit.posteriors.gaussian import LinearGaussianPosterior
        >>> p, q = GaussianLatentModel(v_dim=2, h_dim=3), LinearGaussianPosterior(v_dim=2, h_dim=3)
        >>> v = torch.zeros(5, 2)
        >>> IWAE(n_particles=20).loss(p, q, v, q.noise((20,), v, torch.Generator())).shape
        torch.Size([5])
    """

    def loss(self, energy: Energy, posterior: Posterior, v: Tensor, noise: Tensor) -> Tensor:
        """Estimate the negative importance-weighted lower bound of each example, shape (B,)."""
        return importance_weighted_bound(energy, v, *posterior.rsample_and_log_prob(v, noise))


def importance_weighted_bound(energy: Energy, v: Tensor, h: Tensor, log_q: Tensor) -> Tensor:
    r"""Compute an importance-weighted estimate of the free energy F(v), whose mean is an upper bound on F(v).

    .. math:: -\log \frac1L \sum_{l=1}^L \exp(-E(v, h_l) - \log q(h_l|v))

    Reference: Burda et al. 2016, Eq. 8.

    Args:
        energy: The model's energy E.
        v: The examples, shape (B, *event).
        h: L draws from q(h|v) for each v, shape (L, B, H).
        log_q: The log-density log q(h|v) of each draw, shape (L, B).

    Returns:
        The bound of each example, shape (B,).

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> p, v = GRBM(v_dim=2, h_dim=3), torch.zeros(5, 2)
        >>> importance_weighted_bound(p, v, torch.zeros(7, 5, 3), torch.zeros(7, 5)).shape
        torch.Size([5])
    """
    return math.log(len(h)) - torch.logsumexp(-energy.energy(v, h) - log_q, 0)
