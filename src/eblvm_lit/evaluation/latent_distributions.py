"""Distributions of the latents given v, for which divergences are computed in closed form."""

from __future__ import annotations

from functools import singledispatch
from typing import Any, NamedTuple, cast

from torch import Tensor, nn
from torch.nn.functional import softplus

from eblvm_lit.energies.coupled_grbm import CoupledGRBM
from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
from eblvm_lit.energies.grbm import GRBM
from eblvm_lit.posteriors.bernoulli import BernoulliPosterior
from eblvm_lit.posteriors.gaussian import GaussianPosterior

__all__ = [
    "BernoulliLatents",
    "EnumeratedLatents",
    "GaussianLatents",
    "IndependentLatents",
    "LatentDistribution",
    "closed_divergences",
    "latent_distribution",
    "posterior_divergences",
]


class BernoulliLatents(NamedTuple):
    """A distribution of H independent binary latents for each of B examples.

    Attributes:
        logits: The logits of h_j = 1, shape (B, H).
    """

    logits: Tensor

    def divergences(self, p: BernoulliLatents | EnumeratedLatents) -> dict[str, Tensor]:
        r"""Compute the KL divergence of this distribution q from another distribution p, shape (B,).

        With the logits l of q and x of p, and the softplus zeta, the divergence is
        :math:`\sum_j q_j (l_j - x_j) + \zeta(x_j) - \zeta(l_j)`, which is finite for any logits. If the latents of p
        are not independent, it is the sum :math:`\sum_h q(h) (\log q(h) - \log p(h))` over all states.

        Example:
            >>> from torch import tensor
            >>> q, p = BernoulliLatents(tensor([[0.0]])), BernoulliLatents(tensor([[100.0]]))
            >>> q.divergences(p)["posterior_kl"]  # 100 / 2 - log 2
            tensor([49.3069])
        """
        if isinstance(p, EnumeratedLatents):
            log_q = p.states @ self.logits.T - softplus(self.logits).sum(-1)
            return {"posterior_kl": (log_q.exp() * (log_q - p.log_probs)).sum(0)}
        difference = self.logits - p.logits
        rest = softplus(p.logits) - softplus(self.logits)
        return {"posterior_kl": (self.logits.sigmoid() * difference + rest).sum(-1)}


class EnumeratedLatents(NamedTuple):
    """A distribution of possibly dependent binary latents, given by the probability of each state.

    Attributes:
        states: All S = 2^H states, shape (S, H).
        log_probs: The log-probability of each state for each of B examples, shape (S, B).
    """

    states: Tensor
    log_probs: Tensor


class GaussianLatents(NamedTuple):
    """A distribution of H independent normal latents for each of B examples.

    Attributes:
        mean: The means, shape (B, H).
        log_std: The logarithms of the standard deviations, of shape (B, H) or broadcastable to it.
    """

    mean: Tensor
    log_std: Tensor

    def divergences(self, p: GaussianLatents) -> dict[str, Tensor]:
        r"""Compute the KL and the Fisher divergence of this distribution q from another one p, each of shape (B,).

        With :math:`r = s_q / s_p` and :math:`\Delta = (m_q - m_p) / s_p`:

        .. math:: \mathrm{KL} = \tfrac12 \sum_j r_j^2 + \Delta_j^2 - 1 - \log r_j^2, \quad
            D_F = \tfrac12 \sum_j \frac{(r_j - 1 / r_j)^2 + \Delta_j^2}{s_{p,j}^2}

        Example:
            >>> from torch import zeros, ones
            >>> GaussianLatents(zeros(1, 2), zeros(1, 2)).divergences(GaussianLatents(ones(1, 2), zeros(1, 2)))
            {'posterior_kl': tensor([1.]), 'posterior_fisher': tensor([1.])}
        """
        log_ratio = self.log_std - p.log_std
        shift = ((self.mean - p.mean) * (-p.log_std).exp()).square()
        kl = 0.5 * ((2 * log_ratio).exp() + shift - 1 - 2 * log_ratio)
        fisher = 0.5 * (-2 * p.log_std).exp() * ((log_ratio.exp() - (-log_ratio).exp()).square() + shift)
        return {"posterior_kl": kl.sum(-1), "posterior_fisher": fisher.sum(-1)}


IndependentLatents = BernoulliLatents | GaussianLatents
LatentDistribution = IndependentLatents | EnumeratedLatents


def closed_divergences(q: LatentDistribution | None, p: LatentDistribution | None) -> dict[str, Tensor] | None:
    """Compute the KL and, for Gaussians, the Fisher divergence of q from p; return None if no closed form is known.

    Each divergence has shape (B,).

    Closed forms are known if both are Gaussian, or if q has independent binary latents and p has any binary latents.

    Example:
        >>> from torch import zeros
        >>> q = BernoulliLatents(zeros(1, 2))
        >>> closed_divergences(q, q), closed_divergences(q, None)
        ({'posterior_kl': tensor([0.])}, None)
    """
    bits = isinstance(q, BernoulliLatents) and isinstance(p, BernoulliLatents | EnumeratedLatents)
    if bits or (isinstance(q, GaussianLatents) and isinstance(p, GaussianLatents)):
        return cast(Any, q).divergences(p)
    return None


def posterior_divergences(energy: nn.Module, posterior: nn.Module, v: Tensor) -> dict[str, Tensor] | None:
    """Compute the closed-form divergences of q(h|v) from p(h|v) for each v; see :func:`closed_divergences`.

    Example:
        >>> import torch
        >>> q = BernoulliPosterior(v_dim=2, h_dim=3)
        >>> posterior_divergences(GRBM(v_dim=2, h_dim=3), q, torch.zeros(5, 2))["posterior_kl"].shape
        torch.Size([5])
    """
    return closed_divergences(latent_distribution(posterior, v), latent_distribution(energy, v))


@singledispatch
def latent_distribution(model: nn.Module, v: Tensor) -> LatentDistribution | None:  # noqa: ARG001
    """Return the distribution of h given v: p(h|v) for an energy, q(h|v) for a variational posterior.

    Args:
        model: An energy or a variational posterior.
        v: Examples, shape (B, *event).

    Returns:
        The distribution; None if no closed form is known.

    Example:
        >>> import torch
        >>> latent_distribution(GRBM(v_dim=2, h_dim=3), torch.zeros(5, 2)).logits.shape
        torch.Size([5, 3])
    """
    return None


@latent_distribution.register
def _(model: GRBM, v: Tensor) -> BernoulliLatents:
    return BernoulliLatents(model.latent_logits(v))


@latent_distribution.register
def _(model: CoupledGRBM, v: Tensor) -> EnumeratedLatents:
    return EnumeratedLatents(model.latent_states(), model.latent_log_probs(v))


@latent_distribution.register
def _(model: BernoulliPosterior, v: Tensor) -> BernoulliLatents:
    return BernoulliLatents(model.logits(v))


@latent_distribution.register
def _(model: GaussianLatentModel, v: Tensor) -> GaussianLatents:
    mean = model.latent_mean(v)
    return GaussianLatents(mean, mean.new_zeros(()))


@latent_distribution.register
def _(model: GaussianPosterior, v: Tensor) -> GaussianLatents:
    return GaussianLatents(*model.moments(v))
