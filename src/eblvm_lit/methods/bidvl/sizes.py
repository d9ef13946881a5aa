"""Functions that check whether the energy, encoder, generator and loss of BiDVL are compatible."""

from __future__ import annotations

from torch import nn

from eblvm_lit.energies.base import Energy, MarginalEnergy
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.bidvl.losses import BiDVLLoss
from eblvm_lit.posteriors.gaussian import GaussianPosterior

__all__ = ["check_fit", "check_sizes"]


def check_fit(energy: Energy, posterior: GaussianPosterior, generator: nn.Module, loss: BiDVLLoss) -> None:
    """Raise a ConfigError if the networks have different sizes, or if the loss cannot use this type of energy.

    Args:
        energy: The energy E'(v) or E(v, h).
        posterior: The encoder.
        generator: The generator; see :func:`check_sizes`.
        loss: The losses; :attr:`BiDVLLoss.joint` says which kind of energy they need.

    Raises:
        ConfigError: If the components are incompatible. The message names what differs.

    Example:
        >>> from eblvm_lit.methods.bidvl.joint_losses import CanonicalJoint
        >>> from eblvm_lit.energies.spectral import SpectralEnergy
        >>> from eblvm_lit.networks.mlp import MLP
        >>> from eblvm_lit.posteriors.gaussian import LinearGaussianPosterior
        >>> energy, q = SpectralEnergy(network=MLP(sizes=[2, 8])), LinearGaussianPosterior(v_dim=2, h_dim=3)
        >>> check_fit(energy, q, nn.Linear(3, 2), CanonicalJoint())
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
    check_sizes(generator, posterior, energy)


def check_sizes(generator: nn.Module, posterior: GaussianPosterior | None = None, energy: Energy | None = None) -> None:
    """Raise a ConfigError if the networks differ in the number of latents or in the shape of v.

    Args:
        generator: The generator; its attributes ``h_dim`` and ``event_shape`` are compared if it has them.
        posterior: The encoder; ``h_dim`` is compared, and ``event_shape`` if its network has this attribute.
        energy: The energy E'(v) or E(v, h).

    Raises:
        ConfigError: If the networks differ. The message names what differs.

    Example:
        >>> from eblvm_lit.networks.bidvl_conv import BatchNormEncoder
        >>> from eblvm_lit.networks.bidvl_conv import ConvGenerator
        >>> from eblvm_lit.posteriors.gaussian import EncoderPosterior
        >>> q = EncoderPosterior(network=BatchNormEncoder(v_shape=[1, 8, 8], width=2), h_dim=3)
        >>> check_sizes(ConvGenerator(v_shape=[3, 8, 8], h_dim=3, width=2), q)
        Traceback (most recent call last):
        ...
        eblvm_lit.errors.ConfigError: The generator has v_shape [3, 8, 8] and the encoder [1, 8, 8]: give all ...
    """
    network = getattr(posterior, "network", None)
    shaped = {"generator": generator, "encoder": network, "energy": energy}
    shapes = {name: getattr(part, "event_shape", None) for name, part in shaped.items()}
    latents = {"generator": getattr(generator, "h_dim", None), "encoder": getattr(posterior, "h_dim", None)}
    latents["energy"] = getattr(energy, "h_dim", 0) or None  # a marginal energy has no latents, and h_dim is 0
    for key, sizes in (("h_dim", latents), ("v_shape", shapes)):
        said = [(name, value) for name, value in sizes.items() if value is not None]
        for name, value in said[1:]:
            if value != said[0][1]:
                first, other = (list(x) if isinstance(x, tuple) else x for x in (said[0][1], value))
                raise ConfigError(
                    f"The {said[0][0]} has {key} {first} and the {name} {other}: give all networks the same {key}."
                )
