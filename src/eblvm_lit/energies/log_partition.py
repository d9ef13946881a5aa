"""The exact log Z of an energy, by enumeration or in closed form."""

from __future__ import annotations

import math

import torch

from eblvm_lit.core.tensors import in_float64
from eblvm_lit.energies.base import Energy

__all__ = ["exact_log_partition", "has_exact_log_partition"]


def has_exact_log_partition(energy: Energy, max_enumerated: int) -> bool:
    """Return whether log Z has a closed form or needs an enumeration of at most ``max_enumerated`` binary units."""
    return energy.n_enumerated <= max_enumerated and hasattr(energy, "log_partition")


def exact_log_partition(energy: Energy, max_enumerated: int) -> float | None:
    """Compute log Z in float64, in closed form or by enumerating at most ``max_enumerated`` binary units.

    Returns:
        log Z; None where neither way is possible, infinity where the joint distribution cannot be normalised.

    Example:
        >>> from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> broad = GaussianLatentModel(v_dim=1, h_dim=1)
        >>> _ = torch.nn.init.constant_(broad.W, 2.0)
        >>> exact_log_partition(broad, 20), exact_log_partition(GRBM(v_dim=2, h_dim=21), 20)
        (inf, None)
    """
    if not has_exact_log_partition(energy, max_enumerated):
        return None
    try:
        return float(in_float64(energy).log_partition())  # pyright: ignore[reportCallIssue]
    except (ValueError, torch.linalg.LinAlgError):  # pyright: ignore[reportPrivateImportUsage]
        return math.inf  # Z diverges because the precision matrix of p(v) is not positive definite
