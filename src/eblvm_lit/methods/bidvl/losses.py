"""The losses of BiDVL and of SN-GAN. Each variant minimises sums of some of the terms A to E of BiDVL's paper.

v ~ q(v) are the data and h ~ q(h|v; omega_1) their latents; h_hat ~ N(0, I) are the generator's latents and
v_hat = G(h_hat; omega_2) its samples. Each term has one value for each example, shape (B,). The terms of the lower
level are A, the reconstruction of v and the divergence of q(h|v) from the prior, weighted by r(v); B, the energy of
v_hat; and C, the error of the encoder's latents at v_hat. The terms of the upper level are D, the energy of v minus the
energy of v_hat; and E, whose gradient with respect to the encoder is minus the gradient of C. Reference for all: Kan
et al. 2022, Eq. 11 to 14, and code.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import NonNegativeFloat
from torch import Tensor
from torch.nn.functional import relu, softplus

from eblvm_lit.core.tensors import at_least_float32, sum_event
from eblvm_lit.energies.base import Energy, MarginalEnergy
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.bidvl.base import Networks, Noise, Terms
from eblvm_lit.methods.bidvl.ratios import ConstantRatio
from eblvm_lit.posteriors.base import DistributionParams

__all__ = [
    "Adversarial",
    "BiDVLLoss",
    "FullLatentTerm",
    "NoLatentTerm",
    "OffsetLatentTerm",
    "check_fit",
    "hinge",
    "non_saturating",
    "prior_divergence",
    "reconstruction_error",
]


def reconstruction_error(v: Tensor, reconstruction: Tensor) -> Tensor:
    r"""Compute the squared reconstruction error, the first part of BiDVL's reconstruction term A.

    Up to a constant it is minus the log-density of v given h under the generator.

    .. math:: \|G(h) - v\|^2 = -\log N(v; G(h), \tfrac12 I) + \mathrm{const}

    Args:
        v: The data, shape (B, *event).
        reconstruction: The generator's output G(h), shape (B, *event).

    Example:
        >>> import torch
        >>> reconstruction_error(torch.ones(1, 2), torch.zeros(1, 2))
        tensor([2.])
    """
    # view_as raises an error if the shapes differ, where a difference would be broadcast
    return sum_event(at_least_float32(reconstruction.view_as(v) - v).square())


def prior_divergence(q_params: DistributionParams) -> Tensor:
    r"""Compute the KL divergence of the encoder's distribution q(h|v) from the prior, the second part of term A.

    Evaluated at v_hat, this divergence replaces term E in :class:`FullLatentTerm`.

    .. math:: KL(N(\mu, \sigma^2) \| N(0, I)) = \tfrac12 \sum_j (\mu_j^2 + \sigma_j^2 - \log \sigma_j^2 - 1)

    Args:
        q_params: The mean and log standard deviation of q(h|v), each of shape (B, H).

    Example:
        >>> import torch
        >>> prior_divergence((torch.full((1, 2), 3.0), torch.zeros(1, 2)))
        tensor([9.])
    """
    mean, log_std = q_params
    return 0.5 * (mean.square() + (2 * log_std).exp() - 2 * log_std - 1).sum(-1)


def hinge(real: Tensor, fake: Tensor) -> Tensor:
    r"""Compute the hinge loss of the energy, with a margin of one (Kan et al. 2022, Eq. 23).

    .. math:: \max(0, 1 + E(v)) + \max(0, 1 - E(\hat v))

    Where E(v) > -1 and E(v_hat) < 1, this is the energy difference E(v) - E(v_hat) plus 2.

    Args:
        real: The energies E(v) of the data, shape (B,).
        fake: The energies E(v_hat) of the samples, shape (B,).

    Example:
        >>> import torch
        >>> hinge(torch.tensor([-3.0, 0.5]), torch.tensor([2.0, 0.5]))
        tensor([0., 2.])
    """
    return relu(1 + real) + relu(1 - fake)


def non_saturating(real: Tensor, fake: Tensor) -> Tensor:
    r"""Compute the logistic loss of a classifier that separates data from samples by energy (Goodfellow et al. 2014).

    .. math:: \log(1 + e^{E(v)}) + \log(1 + e^{-E(\hat v)})

    Args:
        real: The energies E(v) of the data, shape (B,).
        fake: The energies E(v_hat) of the samples, shape (B,).

    Example:
        >>> import torch
        >>> non_saturating(torch.tensor([-100.0, 3.0]), torch.tensor([100.0, 100.0])).round(decimals=2)
        tensor([0.0000, 3.0500])
    """
    return softplus(real) + softplus(-fake)


CriticLoss = Literal["difference", "hinge", "softplus"]
CRITIC_LOSSES = {"difference": torch.sub, "hinge": hinge, "softplus": non_saturating}


class BiDVLLoss:
    """The base class of the losses of BiDVL's upper and lower levels.

    A loss is a sum of named, weighted terms, each of shape (B,).

    Args:
        ratio: The importance ratio r(v), the weight of term A.
        critic_loss: The loss of the energy: ``difference`` (term D), ``hinge`` (Eq. 23) or ``softplus`` (GAN).
        latent_weight: The weight c of term C. None stands for 1 / dim h, which the authors use with convolutional
            networks (with residual networks they use 1e-4).

    Attributes:
        joint: Whether the energy is a joint energy E(v, h).
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
        """Compute the reconstruction term A, the energy term B and the latent term C at data v (B, *event).

        The sum of the three terms is the loss of encoder and generator.
        """
        v_hat = networks.samples(noise)
        return {
            **self.reconstruction(networks, v, noise),
            "energy": networks.energy.free_energy(v_hat),
            **self.latent(networks, v_hat, noise),
        }

    def energies(self, networks: Networks, v: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        """Compute the energies of data v (B, *event) and of samples, each of shape (B,).

        Gradients go to the samples only if ``noise`` contains the samples. Otherwise the samples are constants.
        """
        v_hat = noise["v_hat"] if "v_hat" in noise else networks.samples(noise).detach()
        return networks.energy.free_energy(v), networks.energy.free_energy(v_hat)

    def upper(self, networks: Networks, v: Tensor, noise: Noise) -> tuple[Terms, Terms]:
        """Compute the loss that trains the energy, and the energy gap between data and samples, which is logged."""
        real, fake = self.energies(networks, v, noise)
        return {"critic_loss": CRITIC_LOSSES[self.critic_loss](real, fake)}, {"energy_gap": real - fake}

    def upper_encoder(self, networks: Networks, noise: Noise) -> Terms:
        """Compute the encoder's upper-level loss, which is only used if :attr:`regularises_encoder` is true."""
        raise NotImplementedError(f"{type(self).__name__} has no such loss.")

    def reconstruction(self, networks: Networks, v: Tensor, noise: Noise) -> Terms:
        r"""Compute the two parts of term A: the reconstruction error and the KL divergence from the prior.

        .. math:: A = r(v) (\|G(h) - v\|^2 + KL(q(h|v) \| p(h)))

        r(v) is the importance ratio, and h is drawn from q(h|v). Term A trains both the encoder and the generator.
        """
        r = self.ratio(networks.energy, v, networks.mean)
        q_params = networks.encoder.distribution_params(v)
        h = networks.encoder.rsample_given(q_params, noise["eps"])
        return {
            "reconstruction": r * reconstruction_error(v, networks.generator(h)),
            "prior": r * prior_divergence(q_params),
        }

    def encoded(self, networks: Networks, v_hat: Tensor, noise: Noise) -> Tensor:
        """Estimate the latents of the samples v_hat (B, *event) by the encoder's mean, shape (B, H)."""
        return networks.frozen_encoder.mean(v_hat)

    def latent(self, networks: Networks, v_hat: Tensor, noise: Noise) -> Terms:
        r"""Compute the latent term C, the weighted squared error of the latents that the encoder finds from samples.

        .. math:: C = c \|\hat\mu(\hat v) - \hat h\|^2

        The term stands for :math:`-\log q(\hat h | \hat v)`, without the part that depends on the encoder's variance.
        """
        h_hat = noise["h_hat"]
        c = 1 / h_hat.shape[-1] if self.latent_weight is None else self.latent_weight
        return {"latent": c * (self.encoded(networks, v_hat, noise) - h_hat).square().sum(-1)}


class OffsetLatentTerm(BiDVLLoss):
    """The losses of the default variant: term C, the error of the encoder's latents, trains only the generator.

    For the encoder, terms C and E have opposite gradients, so both are left out. Upper level: D trains psi'. Lower
    level: A trains omega_1 and omega_2; B trains omega_2; C, evaluated at the encoder's mean, trains omega_2.
    Reference: Kan et al. 2022, and code.

    Example:
        >>> OffsetLatentTerm(ratio=ConstantRatio(scale=0.05), critic_loss="hinge").regularises_encoder
        False
    """


class FullLatentTerm(BiDVLLoss):
    """The losses of the complete variant: term C, the error of the encoder's latents, trains generator and encoder.

    In the upper level a regulariser of the encoder at samples replaces term E. Upper level: D trains psi'; the
    divergence of q(h|v_hat) from the prior, divided by dim h, trains omega_1. Lower level: A trains omega_1 and
    omega_2; B trains omega_2; C, evaluated at a sample of q(h|v_hat), trains omega_1 and omega_2. Reference: Kan et
    al. 2022, and code.

    Example:
        >>> FullLatentTerm(ratio=ConstantRatio(scale=0.05)).regularises_encoder
        True
    """

    regularises_encoder = True

    def encoded(self, networks: Networks, v_hat: Tensor, noise: Noise) -> Tensor:
        """Draw latents from the encoder's distribution q(h|v_hat) for the samples v_hat (B, *event), shape (B, H)."""
        return networks.encoder.rsample(v_hat, noise["eps_hat"])

    def upper_encoder(self, networks: Networks, noise: Noise) -> Terms:
        """Compute the loss that regularises the encoder at samples v_hat, in place of the paper's term E."""
        q_params = networks.encoder.distribution_params(networks.samples(noise).detach())
        return {"prior": prior_divergence(q_params) / q_params[0].shape[-1]}


class NoLatentTerm(BiDVLLoss):
    """The losses of the variant without terms C and E, the two terms that concern the latents of samples.

    Upper level: D trains psi'. Lower level: A trains omega_1 and omega_2; B trains omega_2. Reference: Kan et al. 2022,
    table 6.

    Example:
        >>> NoLatentTerm(ratio=ConstantRatio(scale=0.05)).regularises_encoder
        False
    """

    def latent(self, networks: Networks, v_hat: Tensor, noise: Noise) -> Terms:
        """Return an empty dict, because this variant omits term C, the error of the encoder's latents."""
        return {}


class Adversarial(BiDVLLoss):
    r"""The losses of a generative adversarial network: the terms B and D, with the energy as the critic.

    .. math:: \min_{\psi'} D, \quad \min_{\omega_2} E_{\hat h} E'(G(\hat h))

    Reference: Miyato et al. 2018; the control of Kan et al. 2022, code.

    Args:
        critic_loss: The loss of the critic: ``hinge``, ``softplus`` or ``difference``.

    Example:
        >>> Adversarial(critic_loss="hinge").latent_weight
        0.0
    """

    def __init__(self, *, critic_loss: CriticLoss = "hinge") -> None:
        super().__init__(ratio=ConstantRatio(scale=0.0), critic_loss=critic_loss, latent_weight=0.0)

    def lower(self, networks: Networks, v: Tensor, noise: Noise) -> Terms:
        """Compute the generator's loss, which is the energy of the samples (term B)."""
        return {"energy": networks.energy.free_energy(networks.samples(noise))}


def check_fit(energy: Energy, loss: BiDVLLoss) -> None:
    """Raise a ConfigError if the loss cannot use this type of energy.

    Args:
        energy: The energy E'(v) or E(v, h).
        loss: The losses; :attr:`BiDVLLoss.joint` says which kind of energy they need.

    Raises:
        ConfigError: If the loss or its ratio needs the other type of energy.

    Example:
        >>> from eblvm_lit.methods.bidvl.joint_losses import CanonicalJoint
        >>> from eblvm_lit.energies.spectral import SpectralEnergy
        >>> from eblvm_lit.networks.mlp import MLP
        >>> check_fit(SpectralEnergy(network=MLP(sizes=[2, 8])), CanonicalJoint())
        Traceback (most recent call last):
        ...
        eblvm_lit.errors.ConfigError: CanonicalJoint needs a joint energy E(v, h), which SpectralEnergy is not.
    """
    if isinstance(energy, MarginalEnergy) == loss.joint:
        kind = "a joint energy E(v, h)" if loss.joint else "an energy of v only"
        raise ConfigError(f"{type(loss).__name__} needs {kind}, which {type(energy).__name__} is not.")
    if loss.ratio.needs_free_energy and not isinstance(energy, MarginalEnergy):
        raise ConfigError(
            f"{type(loss.ratio).__name__} needs an energy of v only, which {type(energy).__name__} is not: use "
            "ratio=constant."
        )
