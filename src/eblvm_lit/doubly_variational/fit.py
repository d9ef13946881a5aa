"""Whether the parts of doubly variational learning fit together."""

from __future__ import annotations

from torch import nn

from eblvm_lit.doubly_variational.variants import Variant
from eblvm_lit.energies.base import Energy, MarginalEnergy
from eblvm_lit.errors import ConfigError
from eblvm_lit.posteriors.gaussian import GaussianPosterior

__all__ = ["check_fit"]


def check_fit(energy: Energy, posterior: GaussianPosterior, generator: nn.Module, variant: Variant) -> None:
    """Refuse parts of different sizes, and an energy of another kind than the variant's.

    Args:
        energy: E'(v), or E(v, h).
        posterior: The encoder.
        generator: A module; its h_dim and event_shape are looked at where it says them.
        variant: Whose :attr:`Variant.joint` says which kind of energy it needs.

    Raises:
        ConfigError: Names what differs.

    Example:
        >>> from eblvm_lit.doubly_variational.joint import CanonicalJoint
        >>> from eblvm_lit.energies.spectral import SpectralEnergy
        >>> from eblvm_lit.networks.mlp import MLP
        >>> from eblvm_lit.posteriors.gaussian import LinearGaussianPosterior
        >>> energy, q = SpectralEnergy(network=MLP(sizes=[2, 8])), LinearGaussianPosterior(v_dim=2, h_dim=3)
        >>> check_fit(energy, q, nn.Linear(3, 2), CanonicalJoint())
        Traceback (most recent call last):
        ...
        eblvm_lit.errors.ConfigError: CanonicalJoint needs a joint energy E(v, h), which SpectralEnergy is not.
    """
    if isinstance(energy, MarginalEnergy) == variant.joint:
        kind = "a joint energy E(v, h)" if variant.joint else "an energy of v alone"
        raise ConfigError(f"{type(variant).__name__} needs {kind}, which {type(energy).__name__} is not.")
    h_dim, shape = getattr(generator, "h_dim", posterior.h_dim), getattr(generator, "event_shape", None)
    if h_dim != posterior.h_dim or (variant.joint and energy.h_dim != h_dim):
        raise ConfigError(
            f"The generator takes {h_dim} latents, the encoder gives {posterior.h_dim}"
            + (f", and the energy takes {energy.h_dim}" if variant.joint else "")
            + ": give them the same h_dim."
        )
    if shape is not None and shape != getattr(energy, "event_shape", shape):
        raise ConfigError(
            f"The generator makes v of shape {list(shape)}, and the energy takes {list(energy.event_shape)}: "
            "give them the same v_shape."
        )
