"""BiDVL's losses for models with a joint energy E(v, h) of data and latents; usually the energy is E'(v)."""

from __future__ import annotations

from torch import Tensor

from eblvm_lit.methods.bidvl.base import Networks, Noise, Terms
from eblvm_lit.methods.bidvl.losses import BiDVLLoss, CriticLoss
from eblvm_lit.methods.bidvl.ratios import ConstantRatio

__all__ = ["CanonicalJoint", "SymmetricJoint"]


class SymmetricJoint(BiDVLLoss):
    r"""The losses of the symmetric divergence for a joint energy E(v, h), from an ablation of Kan et al. 2022.

    .. math:: E_{q(v) q(h|v)} [\log q(h|v) + E(v, h)] + E_{\hat h} E(G(\hat h), \hat h) + A + C

    Upper level: E(v, h) - E(v_hat, h_hat) with h ~ q(h|v) trains psi. Lower level: the first expectation trains
    omega_1, the second expectation and term C train omega_2, and term A trains both. The paper does not give this loss;
    it is here the sum of the terms of the canonical divergence and of terms A and C of :class:`OffsetLatentTerm`.
    Reference: Kan et al. 2022, ablation.

    Example:
        >>> SymmetricJoint(ratio=ConstantRatio(scale=0.05)).joint
        True
    """

    joint = True

    def energies(self, networks: Networks, v: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        """Compute the energies E(v, h) of data and E(v_hat, h_hat) of samples, each of shape (B,).

        The latents h of the data are drawn from the encoder. Unless ``noise`` contains the samples, both are constants,
        so that gradients go only to the energy. With unrolled steps it contains them: h and the samples then depend on
        the energy's parameters through the steps of the encoder and of the generator.
        """
        h = networks.encoder.rsample(v, noise["eps"])
        if "v_hat" in noise:
            return networks.energy(v, h), networks.energy(noise["v_hat"], noise["h_hat"])
        return networks.energy(v, h.detach()), networks.energy(networks.samples(noise).detach(), noise["h_hat"])

    def canonical(self, networks: Networks, v: Tensor, v_hat: Tensor, noise: Noise) -> Terms:
        """Compute the terms of the canonical divergence, which the lower level minimises.

        The entropy of the generator's distribution is left out, because the distribution has no tractable density.
        """
        h, log_q = networks.encoder.rsample_and_log_prob(v, noise["eps"])
        return {"posterior": log_q + networks.energy(v, h), "energy": networks.energy(v_hat, noise["h_hat"])}

    def lower(self, networks: Networks, v: Tensor, noise: Noise) -> Terms:
        """Compute the terms of the lower-level loss: the terms of the canonical divergence, and the terms A and C."""
        v_hat = networks.samples(noise)
        return {
            **self.canonical(networks, v, v_hat, noise),
            **self.reconstruction(networks, v, noise),
            **self.latent(networks, v_hat, noise),
        }


class CanonicalJoint(SymmetricJoint):
    r"""The losses of adversarial variational inference and learning (AdVIL), which has a joint energy E(v, h).

    They belong to the canonical divergence:

    .. math:: E_{q(v) q(h|v)} [\log q(h|v) + E(v, h)] + E_{\hat h} E(G(\hat h), \hat h)

    Upper level: the loss of :class:`SymmetricJoint`. Lower level: the first expectation trains omega_1, the second
    trains omega_2. Reference: Li et al. 2020 (AdVIL).

    Args:
        critic_loss: The loss of the energy: ``difference``, ``hinge`` or ``softplus``.

    Example:
        >>> CanonicalJoint().joint
        True
    """

    def __init__(self, *, critic_loss: CriticLoss = "difference") -> None:
        super().__init__(ratio=ConstantRatio(scale=0.0), critic_loss=critic_loss, latent_weight=0.0)

    def lower(self, networks: Networks, v: Tensor, noise: Noise) -> Terms:
        """Compute the terms of the lower-level loss, which are only the terms of the canonical divergence."""
        return self.canonical(networks, v, networks.samples(noise), noise)
