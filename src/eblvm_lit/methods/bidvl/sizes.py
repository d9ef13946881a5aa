"""A function that checks whether the energy and the loss of BiDVL are compatible."""

from __future__ import annotations

from eblvm_lit.energies.base import Energy, MarginalEnergy
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.bidvl.losses import BiDVLLoss

__all__ = ["check_fit"]


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
