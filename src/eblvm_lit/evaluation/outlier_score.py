"""The score by which a method's energy orders examples: outliers have a low one."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from eblvm_lit.draws.coding import encode
from eblvm_lit.energies.base import Energy, MarginalEnergy
from eblvm_lit.methods.parts import MethodParts
from eblvm_lit.posteriors.free_energy_bound import ROWS, free_energy_bound, has_free_energy_bound

__all__ = ["has_outlier_score", "outlier_score"]


def has_outlier_score(parts: MethodParts) -> bool:
    """Whether a method has an energy whose latents can be summed out, bounded or inferred."""
    return has_free_energy_bound(parts.energy, parts.posterior) or None not in (parts.energy, parts.encoder)


def outlier_score(parts: MethodParts, v: Tensor, generator: torch.Generator, *, n_particles: int) -> Tensor:
    r"""By how much examples look like data: in the order of -F(v), or minus the posterior's bound of F; or -E(v, h).

    A tractable F gives its order by :meth:`~eblvm_lit.energies.base.MarginalEnergy.ranking_energy`, which does not
    saturate. Without a posterior it is the unnormalised log joint :math:`-E(v, h)` at the h that the encoder gives, as
    Pang et al. 2020 (arXiv 2006.08205) detect anomalies by.

    Args:
        parts: Of the method; see :func:`has_outlier_score`.
        v: Examples, shape (n, *event); they are evaluated in chunks.
        generator: Source of a posterior's latents, on v's device.
        n_particles: Latents of each bound.

    Returns:
        Shape (n,).

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> outlier_score(MethodParts(energy=GRBM(v_dim=2, h_dim=3)), torch.zeros(5, 2), torch.Generator(),
        ...               n_particles=1).shape
        torch.Size([5])
    """
    energy = cast(Energy, parts.energy)
    if isinstance(energy, MarginalEnergy):
        with torch.no_grad():
            return torch.cat([-energy.ranking_energy(x) for x in v.split(ROWS)])
    if has_free_energy_bound(energy, parts.posterior):
        return -free_energy_bound(energy, parts.posterior, v, generator, n_particles=n_particles)
    with torch.no_grad():
        return torch.cat([-energy.energy(x, encode(parts, x)) for x in v.split(ROWS)])
