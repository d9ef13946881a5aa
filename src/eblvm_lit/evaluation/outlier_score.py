"""The score by which a method's energy distinguishes data from outliers; outliers have low scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from eblvm_lit.draws.coding import encode
from eblvm_lit.energies.base import Energy, MarginalEnergy
from eblvm_lit.energies.noise_conditional import AtLevel, MarginalAtLevel
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.parts import MethodParts
from eblvm_lit.posteriors.at_every_level import PosteriorAtLevel
from eblvm_lit.posteriors.free_energy_bound import ROWS, free_energy_bound, has_free_energy_bound

__all__ = ["has_outlier_score", "outlier_score", "parts_at_levels", "scores_to_rank"]


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


def scores_to_rank(
    parts: MethodParts, v: Tensor, generator: torch.Generator, *, n_particles: int, name: str = "test data"
) -> Tensor:
    """Compute the scores of examples as :func:`outlier_score` does, and check that they can be ranked.

    Args:
        parts: The parts of the method.
        v: Examples, shape (n, *event).
        generator: Source of the posterior's latents, on v's device.
        n_particles: Number of latents drawn per example for the bound.
        name: What the examples are, for the message of the error.

    Raises:
        ConfigError: If a score is NaN; infinite values are allowed.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> v = torch.tensor([[0.0, torch.nan]])
        >>> scores_to_rank(MethodParts(energy=GRBM(v_dim=2, h_dim=3)), v, torch.Generator(), n_particles=1)
        Traceback (most recent call last):
        ...
        eblvm_lit.errors.ConfigError: The energy of test data is NaN for some examples, which ...
    """
    found = outlier_score(parts, v, generator, n_particles=n_particles)
    if found.isnan().any():
        raise ConfigError(f"The energy of {name} is NaN for some examples, which therefore cannot be ranked.")
    return found


def parts_at_levels(parts: MethodParts, levels: Sequence[float]) -> dict[str, MethodParts]:
    """Return the parts of a method at each noise level, in a dict by the suffix of this level's metric names.

    The parts themselves have an empty suffix. A method whose energy does not know the noise level has no other parts.

    Args:
        parts: The parts of the method.
        levels: Further noise levels, in units of the data's variance.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> list(parts_at_levels(MethodParts(energy=GRBM(v_dim=2, h_dim=3)), [0.1]))
        ['']
    """
    found = {"": parts}
    energy = parts.energy
    if isinstance(energy, AtLevel | MarginalAtLevel):
        for level in levels:
            t = level * energy.every_level.noise_range.std**2
            q = PosteriorAtLevel(parts.posterior.inner, t) if isinstance(parts.posterior, PosteriorAtLevel) else None
            found[f"_at_{level:g}"] = parts._replace(energy=energy.every_level.at_level(t), posterior=q)
    return found
