"""The free energy of examples, the bound by a posterior where it is not tractable, and the score of outliers."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from eblvm_lit.draws.coding import encode
from eblvm_lit.energies.base import Energy, MarginalEnergy
from eblvm_lit.methods.parts import MethodParts
from eblvm_lit.posteriors.base import Posterior

__all__ = ["free_energy_bound", "has_free_energy_bound", "has_outlier_score", "outlier_score"]

ROWS = 500


def has_free_energy_bound(energy: object, posterior: object) -> bool:
    """Whether an energy has a tractable free energy, or a posterior that bounds it."""
    return isinstance(energy, MarginalEnergy) or (isinstance(energy, Energy) and isinstance(posterior, Posterior))


@torch.no_grad()
def free_energy_bound(
    energy: Energy, posterior: Posterior | None, v: Tensor, generator: torch.Generator, *, n_particles: int
) -> Tensor:
    r"""F(v) where it is tractable; elsewhere a Monte Carlo estimate of the bound that a posterior gives.

    .. math:: F(v) \le E_{q(h|v)} [E(v, h) + \log q(h|v)]

    Args:
        energy: The model.
        posterior: q; not used where F is tractable.
        v: Examples, shape (n, *event); they are evaluated in chunks.
        generator: Source of the latents, on v's device.
        n_particles: Latents of each bound.

    Returns:
        Shape (n,).

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.posteriors.bernoulli import BernoulliPosterior
        >>> q = BernoulliPosterior(v_dim=2, h_dim=3)
        >>> free_energy_bound(GRBM(v_dim=2, h_dim=3), q, torch.zeros(5, 2), torch.Generator(), n_particles=1).shape
        torch.Size([5])
    """

    def of(x: Tensor) -> Tensor:
        if isinstance(energy, MarginalEnergy):
            return energy.free_energy(x)
        q = cast(Posterior, posterior)
        h, log_q = q.rsample_and_log_prob(x, q.noise((n_particles,), x, generator))
        return (energy.energy(x, h) + log_q).mean(0)

    return torch.cat([of(x) for x in v.split(ROWS)])


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
