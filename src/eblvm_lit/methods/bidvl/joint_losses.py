"""BiDVL's losses of a joint energy E(v, h), where the others have E'(v) and q(h|v)."""

from __future__ import annotations

from torch import Tensor

from eblvm_lit.methods.bidvl.base import Networks, Noise, Terms
from eblvm_lit.methods.bidvl.losses import BiDVLLoss, CriticLoss
from eblvm_lit.methods.bidvl.ratios import ConstantRatio

__all__ = ["CanonicalJoint", "SymmetricJoint"]


class SymmetricJoint(BiDVLLoss):
    r"""The symmetric divergence of a joint energy, for the ablation.

    .. math:: E_{q(v) q(h|v)} [\log q(h|v) + E(v, h)] + E_{\hat h} E(G(\hat h), \hat h) + A + C

    Upper: E(v, h) - E(v_hat, h_hat), h ~ q(h|v), to psi. Lower: the first to omega_1, the second and C to omega_2, A to
    both. No loss is published: the terms are those of :class:`OffsetLatentTerm` beside the canonical divergence's.
    Reference: Kan et al. 2022, ablation.

    Example:
        >>> SymmetricJoint(ratio=ConstantRatio(scale=0.05)).joint
        True
    """

    joint = True

    def energies(self, networks: Networks, v: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        """Of data with the encoder's latents and of samples with theirs, each of shape (B,); all but E is constant."""
        h = networks.encoder.rsample(v, noise["eps"]).detach()
        v_hat = noise["v_hat"] if "v_hat" in noise else networks.samples(noise).detach()
        return networks.energy(v, h), networks.energy(v_hat, noise["h_hat"])

    def canonical(self, networks: Networks, v: Tensor, v_hat: Tensor, noise: Noise) -> Terms:
        """The lower level of the canonical divergence; the generator's entropy, which has no density, is left out."""
        h, log_q = networks.encoder.rsample_and_log_prob(v, noise["eps"])
        return {"posterior": log_q + networks.energy(v, h), "energy": networks.energy(v_hat, noise["h_hat"])}

    def lower(self, networks: Networks, v: Tensor, noise: Noise) -> Terms:
        """The canonical divergence's terms + A + C."""
        v_hat = networks.samples(noise)
        return {
            **self.canonical(networks, v, v_hat, noise),
            **self.reconstruction(networks, v, noise),
            **self.latent(networks, v_hat, noise),
        }


class CanonicalJoint(SymmetricJoint):
    r"""The canonical divergence of a joint energy: adversarial variational inference and learning.

    .. math:: E_{q(v) q(h|v)} [\log q(h|v) + E(v, h)] + E_{\hat h} E(G(\hat h), \hat h)

    Upper: as in the symmetric case. Lower: the first to omega_1, the second to omega_2. Reference: Li et al. 2020
    (AdVIL).

    Args:
        critic_loss: What the energy descends: ``difference``, ``hinge`` or ``softplus``.

    Example:
        >>> CanonicalJoint().joint
        True
    """

    def __init__(self, *, critic_loss: CriticLoss = "difference") -> None:
        super().__init__(ratio=ConstantRatio(scale=0.0), critic_loss=critic_loss, latent_weight=0.0)

    def lower(self, networks: Networks, v: Tensor, noise: Noise) -> Terms:
        """The canonical divergence's terms."""
        return self.canonical(networks, v, networks.samples(noise), noise)
