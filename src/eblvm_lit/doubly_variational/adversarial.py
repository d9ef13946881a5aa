"""What is left of both levels without an encoder: a generative adversarial network."""

from __future__ import annotations

from torch import Tensor

from eblvm_lit.doubly_variational.players import Noise, Players
from eblvm_lit.doubly_variational.ratios import ConstantRatio
from eblvm_lit.doubly_variational.variants import Gap, Terms, Variant

__all__ = ["Adversarial"]


class Adversarial(Variant):
    r"""Terms B and D alone: the energy is a critic.

    .. math:: \min_{\psi'} D, \quad \min_{\omega_2} E_{\hat h} E'(G(\hat h))

    Reference: Miyato et al. 2018; the control of Kan et al. 2022, code.

    Args:
        gap: What the critic descends: ``hinge``, ``softplus`` or ``difference``.

    Raises:
        ConfigError: For an unknown gap.

    Example:
        >>> Adversarial(gap="hinge").latent_weight
        0.0
    """

    def __init__(self, *, gap: Gap = "hinge") -> None:
        super().__init__(ratio=ConstantRatio(basic=0.0), gap=gap, latent_weight=0.0)

    def lower(self, players: Players, v: Tensor, noise: Noise) -> Terms:  # noqa: ARG002 - part of the contract
        """B."""
        return {"energy": players.energy.free_energy(players.samples(noise))}
