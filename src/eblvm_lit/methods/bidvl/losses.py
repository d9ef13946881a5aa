"""The losses of BiDVL and of SN-GAN: their terms, by the paper's equations, and the sums that each variant descends.

Names: v ~ q(v) are data, h ~ q(h|v; omega_1) their latents, h_hat ~ N(0, I) and v_hat = G(h_hat; omega_2) the
generator's. Each term is per example, shape (B,). Reference of all: Kan et al. 2022, Eq. 11 to 14, and code.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import NonNegativeFloat
from torch import Tensor
from torch.nn.functional import relu, softplus

from eblvm_lit.core.tensors import at_least_float32, sum_event
from eblvm_lit.methods.bidvl.base import Networks, Noise, Terms
from eblvm_lit.methods.bidvl.ratios import ConstantRatio
from eblvm_lit.posteriors.base import DistributionParams

__all__ = [
    "Adversarial",
    "BiDVLLoss",
    "FullLatentTerm",
    "NoLatentTerm",
    "OffsetLatentTerm",
    "hinge",
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


CriticLoss = Literal["difference", "hinge", "softplus"]
CRITIC_LOSSES = {"difference": torch.sub, "hinge": hinge, "softplus": non_saturating}


class BiDVLLoss:
    """Losses of both levels as named terms, each weighted, per example, shape (B,); a loss is their sum.

    Args:
        ratio: r(v), by which the reconstruction and its regulariser count.
        critic_loss: What the energy descends: ``difference`` (term D), ``hinge`` (Eq. 23) or ``softplus`` (GAN).
        latent_weight: c of term C; null: 1 / dim h, as published in convolutional networks (1e-4 in residual ones).

    Attributes:
        joint: Whether the energy is E(v, h).
        regularises_encoder: Whether the upper level has a loss for the encoder.
    """

    joint = False
    regularises_encoder = False

    def __init__(
        self,
        *,
        ratio: ConstantRatio,
        critic_loss: CriticLoss = "difference",
        latent_weight: NonNegativeFloat | None = None,
    ) -> None:
        self.ratio = ratio
        self.critic_loss = critic_loss
        self.latent_weight = latent_weight

    def lower(self, networks: Networks, v: Tensor, noise: Noise) -> Terms:
        """What encoder and generator descend, at data v (B, *event): A + B + C."""
        v_hat = networks.samples(noise)
        return {
            **self.reconstruction(networks, v, noise),
            "energy": networks.energy.free_energy(v_hat),
            **self.latent(networks, v_hat, noise),
        }

    def energies(self, networks: Networks, v: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        """Of data v (B, *event) and of samples, each of shape (B,); samples are constants unless they were given."""
        v_hat = noise["v_hat"] if "v_hat" in noise else networks.samples(noise).detach()
        return networks.energy.free_energy(v), networks.energy.free_energy(v_hat)

    def upper(self, networks: Networks, v: Tensor, noise: Noise) -> tuple[Terms, Terms]:
        """What the energy descends, at data v (B, *event), and E(v) - E(v_hat); no other network has a gradient."""
        real, fake = self.energies(networks, v, noise)
        return {"critic_loss": CRITIC_LOSSES[self.critic_loss](real, fake)}, {"energy_gap": real - fake}

    def upper_encoder(self, networks: Networks, noise: Noise) -> Terms:
        """What the encoder descends in the upper level, if :attr:`regularises_encoder`."""
        raise NotImplementedError(f"{type(self).__name__} has no such loss.")

    def reconstruction(self, networks: Networks, v: Tensor, noise: Noise) -> Terms:
        r"""Term A, to both: :math:`r(v) (\|G(h) - v\|^2 + KL(q(h|v) \| p(h)))`, h ~ q(h|v)."""
        r = self.ratio(networks.energy, v, networks.mean)
        q_params = networks.encoder.distribution_params(v)
        h = networks.encoder.rsample_given(q_params, noise["eps"])
        return {
            "reconstruction": r * reconstruction_error(v, networks.generator(h)),
            "prior": r * prior_divergence(q_params),
        }

    def encoded(self, networks: Networks, v_hat: Tensor, noise: Noise) -> Tensor:
        """Where the encoder finds the latents of samples v_hat (B, *event), shape (B, H)."""
        return networks.frozen_encoder.mean(v_hat)

    def latent(self, networks: Networks, v_hat: Tensor, noise: Noise) -> Terms:
        r"""Term C, weighted: :math:`c \|\hat\mu(\hat v) - \hat h\|^2` for :math:`-\log q(\hat h | \hat v)`.

        The part of the log density that is the encoder's variance is left out.
        """
        h_hat = noise["h_hat"]
        c = 1 / h_hat.shape[-1] if self.latent_weight is None else self.latent_weight
        return {"latent": c * (self.encoded(networks, v_hat, noise) - h_hat).square().sum(-1)}


class OffsetLatentTerm(BiDVLLoss):
    """Term C is the generator's alone, and so replaces term E, which would undo it in the encoder: the default.

    Upper: D to psi'. Lower: A to omega_1 and omega_2, B to omega_2, C at the encoder's mean to omega_2. Reference: Kan
    et al. 2022, and code.

    Example:
        >>> OffsetLatentTerm(ratio=ConstantRatio(scale=0.05), critic_loss="hinge").regularises_encoder
        False
    """


class FullLatentTerm(BiDVLLoss):
    """Term C is the encoder's, too; term E is a regulariser of the encoder at samples, in the upper level.

    Upper: D to psi', and the divergence of q(h|v_hat) from the prior, over dim h, to omega_1. Lower: A and C, at a
    sample of q(h|v_hat), to omega_1 and omega_2, B to omega_2. Reference: Kan et al. 2022, and code.

    Example:
        >>> FullLatentTerm(ratio=ConstantRatio(scale=0.05)).regularises_encoder
        True
    """

    regularises_encoder = True

    def encoded(self, networks: Networks, v_hat: Tensor, noise: Noise) -> Tensor:
        """A sample of q(h|v_hat)."""
        return networks.encoder.rsample(v_hat, noise["eps_hat"])

    def upper_encoder(self, networks: Networks, noise: Noise) -> Terms:
        """In the place of E."""
        q_params = networks.encoder.distribution_params(networks.samples(noise).detach())
        return {"prior": prior_divergence(q_params) / q_params[0].shape[-1]}


class NoLatentTerm(BiDVLLoss):
    """Neither term C nor E.

    Upper: D to psi'. Lower: A to omega_1 and omega_2, B to omega_2. Reference: Kan et al. 2022, table 6.

    Example:
        >>> NoLatentTerm(ratio=ConstantRatio(scale=0.05)).regularises_encoder
        False
    """

    def latent(self, networks: Networks, v_hat: Tensor, noise: Noise) -> Terms:
        """None."""
        return {}


class Adversarial(BiDVLLoss):
    r"""Terms B and D alone: the energy is a critic.

    .. math:: \min_{\psi'} D, \quad \min_{\omega_2} E_{\hat h} E'(G(\hat h))

    Reference: Miyato et al. 2018; the control of Kan et al. 2022, code.

    Args:
        critic_loss: What the critic descends: ``hinge``, ``softplus`` or ``difference``.

    Example:
        >>> Adversarial(critic_loss="hinge").latent_weight
        0.0
    """

    def __init__(self, *, critic_loss: CriticLoss = "hinge") -> None:
        super().__init__(ratio=ConstantRatio(scale=0.0), critic_loss=critic_loss, latent_weight=0.0)

    def lower(self, networks: Networks, v: Tensor, noise: Noise) -> Terms:
        """B."""
        return {"energy": networks.energy.free_energy(networks.samples(noise))}
