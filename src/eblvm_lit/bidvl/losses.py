"""The losses of both levels of BiDVL and of its baseline SN-GAN: which terms each variant adds up."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

from torch import Tensor

from eblvm_lit.bidvl.networks import Networks, Noise
from eblvm_lit.bidvl.ratios import ConstantRatio
from eblvm_lit.bidvl.terms import (
    energy_difference,
    hinge,
    latent_error,
    non_saturating,
    prior_divergence,
    reconstruction_error,
)
from eblvm_lit.errors import ConfigError

__all__ = ["Adversarial", "BiDVLLoss", "FullLatentTerm", "NoLatentTerm", "OffsetLatentTerm"]

Terms = dict[str, Tensor]
CriticLoss = Literal["difference", "hinge", "softplus"]
CRITIC_LOSSES = {"difference": energy_difference, "hinge": hinge, "softplus": non_saturating}


class BiDVLLoss(ABC):
    """Losses of both levels as named terms, each weighted, per example, shape (B,); a loss is their sum.

    Args:
        ratio: r(v), by which the reconstruction and its regulariser count.
        critic_loss: What the energy descends: ``difference`` (term D), ``hinge`` (Eq. 23) or ``softplus`` (GAN).
        latent_weight: c of term C; null: 1 / dim h, as published in convolutional networks (1e-4 in residual ones).

    Raises:
        ConfigError: For an unknown critic_loss, or a negative weight.

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
        latent_weight: float | None = None,
    ) -> None:
        if critic_loss not in CRITIC_LOSSES:
            raise ConfigError(f"critic_loss is one of {', '.join(CRITIC_LOSSES)}, not {critic_loss!r}.")
        if latent_weight is not None and not latent_weight >= 0:
            raise ConfigError(f"latent_weight must be >= 0, or null for 1 / dim h, not {latent_weight}.")
        self.ratio, self.critic_loss, self.latent_weight = ratio, critic_loss, latent_weight

    @abstractmethod
    def lower(self, networks: Networks, v: Tensor, noise: Noise) -> Terms:
        """What encoder and generator descend, at data v (B, *event)."""

    def energies(self, networks: Networks, v: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        """Of data v (B, *event) and of samples, each of shape (B,); samples are constants unless they were given."""
        v_hat = noise["v_hat"] if "v_hat" in noise else networks.samples(noise).detach()
        return networks.energy.free_energy(v), networks.energy.free_energy(v_hat)

    def upper(self, networks: Networks, v: Tensor, noise: Noise) -> Terms:
        """What the energy descends, at data v (B, *event); nobody else has a gradient of it."""
        return self.descended(*self.energies(networks, v, noise))

    def descended(self, real: Tensor, fake: Tensor) -> Terms:
        """The upper level's term, of both energies, each of shape (B,)."""
        return {"critic_loss": CRITIC_LOSSES[self.critic_loss](real, fake)}

    def upper_encoder(self, networks: Networks, noise: Noise) -> Terms:
        """What the encoder descends in the upper level, if :attr:`regularises_encoder`."""
        raise NotImplementedError(f"{type(self).__name__} has no such loss.")

    def reconstruction(self, networks: Networks, v: Tensor, noise: Noise) -> Terms:
        r"""Term A, to both: :math:`r(v) (\|G(h) - v\|^2 + KL(q(h|v) \| p(h)))`, h ~ q(h|v)."""
        r, q_params = self.ratio(networks.energy, v, networks.mean), networks.encoder.distribution_params(v)
        h = networks.encoder.rsample_given(q_params, noise["eps"])
        return {
            "reconstruction": r * reconstruction_error(v, networks.generator(h)),
            "prior": r * prior_divergence(q_params),
        }

    def latent(self, h_hat: Tensor, found: Tensor) -> Terms:
        r"""Term C, weighted: :math:`c \|\hat\mu - \hat h\|^2`."""
        c = 1 / h_hat.shape[-1] if self.latent_weight is None else self.latent_weight
        return {"latent": c * latent_error(h_hat, found)}


class OffsetLatentTerm(BiDVLLoss):
    """Term C is the generator's alone, and so replaces term E, which would undo it in the encoder: the default.

    Upper: D to psi'. Lower: A to omega_1 and omega_2, B to omega_2, C at the encoder's mean to omega_2. Reference: Kan
    et al. 2022, and code.

    Example:
        >>> OffsetLatentTerm(ratio=ConstantRatio(scale=0.05), critic_loss="hinge").regularises_encoder
        False
    """

    def lower(self, networks: Networks, v: Tensor, noise: Noise) -> Terms:
        """A + B + C."""
        v_hat = networks.samples(noise)
        return {
            **self.reconstruction(networks, v, noise),
            "energy": networks.energy.free_energy(v_hat),
            **self.latent(noise["h_hat"], networks.frozen_encoder.mean(v_hat)),
        }


class FullLatentTerm(BiDVLLoss):
    """Term C is the encoder's, too; term E is a regulariser of the encoder at samples, in the upper level.

    Upper: D to psi', and the divergence of q(h|v_hat) from the prior, over dim h, to omega_1. Lower: A and C, at a
    sample of q(h|v_hat), to omega_1 and omega_2, B to omega_2. Reference: Kan et al. 2022, and code.

    Example:
        >>> FullLatentTerm(ratio=ConstantRatio(scale=0.05)).regularises_encoder
        True
    """

    regularises_encoder = True

    def lower(self, networks: Networks, v: Tensor, noise: Noise) -> Terms:
        """A + B + C."""
        v_hat = networks.samples(noise)
        return {
            **self.reconstruction(networks, v, noise),
            "energy": networks.energy.free_energy(v_hat),
            **self.latent(noise["h_hat"], networks.encoder.rsample(v_hat, noise["eps_hat"])),
        }

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

    def lower(self, networks: Networks, v: Tensor, noise: Noise) -> Terms:
        """A + B."""
        v_hat = networks.samples(noise)
        return {
            **self.reconstruction(networks, v, noise),
            "energy": networks.energy.free_energy(v_hat),
        }


class Adversarial(BiDVLLoss):
    r"""Terms B and D alone: the energy is a critic.

    .. math:: \min_{\psi'} D, \quad \min_{\omega_2} E_{\hat h} E'(G(\hat h))

    Reference: Miyato et al. 2018; the control of Kan et al. 2022, code.

    Args:
        critic_loss: What the critic descends: ``hinge``, ``softplus`` or ``difference``.

    Raises:
        ConfigError: For an unknown critic_loss.

    Example:
        >>> Adversarial(critic_loss="hinge").latent_weight
        0.0
    """

    def __init__(self, *, critic_loss: CriticLoss = "hinge") -> None:
        super().__init__(ratio=ConstantRatio(scale=0.0), critic_loss=critic_loss, latent_weight=0.0)

    def lower(self, networks: Networks, v: Tensor, noise: Noise) -> Terms:  # noqa: ARG002 - part of the contract
        """B."""
        return {"energy": networks.energy.free_energy(networks.samples(noise))}
