"""The score by which a method's energy distinguishes data from outliers; outliers have low scores."""

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
    """Return whether a method can score examples by the free energy, by its bound, or by E(v, h) with an encoder."""
    return has_free_energy_bound(parts.energy, parts.posterior) or None not in (parts.energy, parts.encoder)


def outlier_score(parts: MethodParts, v: Tensor, generator: torch.Generator, *, n_particles: int) -> Tensor:
    r"""Compute a score for each example; examples that are more probable under the model have higher scores.

    If F is tractable, the score is minus
    :meth:`~eblvm_lit.energies.base.MarginalEnergy.ranking_energy`, which orders examples as F does and does not
    saturate. With a posterior it is minus the posterior's upper bound of F(v). With only an encoder it is the
    unnormalised log joint :math:`-E(v, h)` at the h that the encoder returns, the score with which Pang et al. 2020
    (arXiv 2006.08205) detect anomalies.

    Args:
        parts: The parts of the method, for which :func:`has_outlier_score` is true.
        v: Examples, shape (n, *event); they are evaluated in chunks.
        generator: Source of the posterior's latents, on v's device.
        n_particles: Number of latents drawn per example for the bound.

    Returns:
        The scores, shape (n,).

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
