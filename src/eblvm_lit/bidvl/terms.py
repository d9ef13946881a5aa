r"""The terms of both levels' losses, each per example, shape (B,).

Names: v ~ q(v) are data, h ~ q(h|v; omega_1) their latents, h_hat ~ N(0, I) and v_hat = G(h_hat; omega_2) the
generator's. Reference of all: Kan et al. 2022, Eq. 11 to 14, and code.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import relu, softplus

from eblvm_lit.core.functional import at_least_float32, sum_event
from eblvm_lit.posteriors.base import DistributionParams

__all__ = [
    "energy_difference",
    "hinge",
    "latent_error",
    "non_saturating",
    "prior_divergence",
    "reconstruction_error",
]


def reconstruction_error(v: Tensor, reconstruction: Tensor) -> Tensor:
    r"""Minus the generator's log density of v, less a constant (the first half of term A).

    .. math:: \|G(h) - v\|^2 = -\log N(v; G(h), \tfrac12 I) + \mathrm{const}

    Args:
        v: Data, shape (B, *event).
        reconstruction: G(h), shape (B, *event).

    Example:
        >>> import torch
        >>> reconstruction_error(torch.ones(1, 2), torch.zeros(1, 2))
        tensor([2.])
    """
    return sum_event(at_least_float32(reconstruction - v).square())


def prior_divergence(q_params: DistributionParams) -> Tensor:
    r"""The divergence of the encoder's q(h|v) from the prior: the second half of term A; at v_hat, in the place of E.

    .. math:: KL(N(\mu, \sigma^2) \| N(0, I)) = \tfrac12 \sum_j (\mu_j^2 + \sigma_j^2 - \log \sigma_j^2 - 1)

    Args:
        q_params: Mean and log standard deviation, each of shape (B, H).

    Example:
        >>> import torch
        >>> prior_divergence((torch.full((1, 2), 3.0), torch.zeros(1, 2)))
        tensor([9.])
    """
    mean, log_std = q_params
    return 0.5 * (mean.square() + (2 * log_std).exp() - 2 * log_std - 1).sum(-1)


def latent_error(h_hat: Tensor, found: Tensor) -> Tensor:
    r"""How far from h_hat the encoder finds it (term C).

    .. math:: \|\hat\mu(\hat v) - \hat h\|^2 \quad \text{for} \quad -\log q(\hat h | \hat v)

    The part of the log density that is the encoder's variance is left out.

    Args:
        h_hat: The generator's latents, shape (B, H).
        found: The encoder's mean at v_hat, or a sample, shape (B, H).

    Example:
        >>> import torch
        >>> latent_error(torch.ones(1, 2), torch.zeros(1, 2))
        tensor([2.])
    """
    return (found - h_hat).square().sum(-1)


def energy_difference(real: Tensor, fake: Tensor) -> Tensor:
    r"""What the energy descends (term D): low energy at data, high energy at samples.

    .. math:: E(v) - E(\hat v)

    Args:
        real: E(v), shape (B,).
        fake: E(v_hat), shape (B,).

    Example:
        >>> import torch
        >>> energy_difference(torch.tensor([1.0]), torch.tensor([3.0]))
        tensor([-2.])
    """
    return real - fake


def hinge(real: Tensor, fake: Tensor) -> Tensor:
    r"""The energy difference where neither energy is on its own side of a margin of one (Eq. 23).

    .. math:: \max(0, 1 + E(v)) + \max(0, 1 - E(\hat v))

    Args:
        real: E(v), shape (B,).
        fake: E(v_hat), shape (B,).

    Example:
        >>> import torch
        >>> hinge(torch.tensor([-3.0, 0.5]), torch.tensor([2.0, 0.5]))
        tensor([0., 2.])
    """
    return relu(1 + real) + relu(1 - fake)


def non_saturating(real: Tensor, fake: Tensor) -> Tensor:
    r"""The logistic loss of telling data from samples by the energy (Goodfellow et al. 2014).

    .. math:: \log(1 + e^{E(v)}) + \log(1 + e^{-E(\hat v)})

    Args:
        real: E(v), shape (B,).
        fake: E(v_hat), shape (B,).

    Example:
        >>> import torch
        >>> non_saturating(torch.tensor([-100.0, 3.0]), torch.tensor([100.0, 100.0])).round(decimals=2)
        tensor([0.0000, 3.0500])
    """
    return softplus(real) + softplus(-fake)
