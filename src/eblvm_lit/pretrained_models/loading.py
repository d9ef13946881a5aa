"""Loading of the package's trained models by name."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from eblvm_lit.energies.grbm import GRBM
from eblvm_lit.errors import ConfigError, DataError

__all__ = ["MODELS", "pretrained"]

# SHA-256 of each file: it is the file that the model card describes.
MODELS = {"grbm_digits": "192670d3c03095ac4b561cc26f03c5342b076eca259cc6be9a8c7a908dc5d3f6"}


def pretrained(name: str) -> GRBM:
    r"""A trained model of this project, without gradients.

    .. math:: p(v, h) \propto \exp(-E(v, h; \hat\theta))

    Its data, training and metrics are in ``docs/pretrained.md``.

    Args:
        name: ``grbm_digits``: scikit-learn's digits, v = x / 16 in [0, 1]^64, 200 binary latents.

    Raises:
        ConfigError: For an unknown name.
        DataError: If the file is missing or not the published one.

    Example:
        >>> energy = pretrained("grbm_digits")
        >>> energy.event_shape, energy.h_dim
        ((64,), 200)
    """
    if name not in MODELS:
        raise ConfigError(f"There is no trained model {name!r}; there is {', '.join(MODELS)}.")
    path = Path(__file__).with_name(f"{name}.pt")
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != MODELS[name]:
        raise DataError(f"{path} is missing or not the published file: install eblvm_lit again.")
    state = torch.load(path, map_location="cpu", weights_only=True)
    v_dim, h_dim = state["W"].shape
    energy = GRBM(v_dim=v_dim, h_dim=h_dim)
    energy.load_state_dict(state)
    return energy.requires_grad_(False)
