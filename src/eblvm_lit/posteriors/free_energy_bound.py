"""The free energy of examples, or an upper bound computed with a posterior if it is not tractable."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from eblvm_lit.energies.base import Energy, MarginalEnergy
from eblvm_lit.posteriors.base import Posterior

__all__ = ["free_energy_bound", "has_free_energy_bound"]

ROWS = 500


def has_free_energy_bound(energy: object, posterior: object) -> bool:
    """Return whether the model's free energy is tractable or can be bounded with the given posterior."""
    return isinstance(energy, MarginalEnergy) or (isinstance(energy, Energy) and isinstance(posterior, Posterior))


@torch.no_grad()
def free_energy_bound(
    energy: Energy, posterior: Posterior | None, v: Tensor, generator: torch.Generator, *, n_particles: int
) -> Tensor:
    r"""Compute the free energy F(v) if it is tractable, else a Monte Carlo estimate of its variational upper bound.

    .. math:: F(v) \le E_{q(h|v)} [E(v, h) + \log q(h|v)]

    Args:
        energy: The energy, with or without a tractable F.
        posterior: The posterior q; not used if F is tractable.
        v: Examples, shape (n, *event); they are evaluated in chunks of 500.
        generator: The generator that draws the latents, on v's device.
        n_particles: The number of latents that estimate the bound of each example.

    Returns:
        F or its bound for each example, shape (n,).

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
        # exact samples: the mean at relaxed bits may be below F
        h, log_q = q.sample_and_log_prob(x, q.noise((n_particles,), x, generator))
        return (energy.energy(x, h) + log_q).mean(0)

    return torch.cat([of(x) for x in v.split(ROWS)])
