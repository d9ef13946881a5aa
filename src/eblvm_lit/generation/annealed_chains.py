"""What annealed Langevin chains move in: the energies that a model gives to some of its variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from eblvm_lit.energies.base import Energy, MarginalEnergy

__all__ = ["Chains", "free_energy", "joint_energy", "latent_energy", "visible_energy"]


class Chains(NamedTuple):
    """Some chains that run together; see :meth:`AnnealedLangevin.moments` for what its fields mean.

    Attributes:
        energy: Total energy of all chains, a scalar, of the variables.
        start: The variables, each of shape (B, *its shape).
        moving: What drift and noise of each variable are multiplied by.
        denoised: Which variables the last step moves.
    """

    energy: Callable[..., Tensor]
    start: tuple[Tensor, ...]
    moving: tuple[Tensor | float, ...] | None = None
    denoised: tuple[bool, ...] | None = None


def free_energy(model: MarginalEnergy) -> Callable[[Tensor], Tensor]:
    r""":math:`\sum_i F(v_i)` as a function of v (B, *event)."""
    return lambda v: model.free_energy(v).sum()


def joint_energy(model: Energy) -> Callable[[Tensor, Tensor], Tensor]:
    r""":math:`\sum_i E(v_i, h_i)` as a function of v (B, *event) and h (B, H)."""
    return lambda v, h: model.energy(v, h).sum()


def visible_energy(model: Energy, h: Tensor) -> Callable[[Tensor], Tensor]:
    r""":math:`\sum_i E(v_i, h_i)` as a function of v alone: of p(v|h), at h (B, H)."""
    return lambda v: model.energy(v, h).sum()


def latent_energy(model: Energy, v: Tensor) -> Callable[[Tensor], Tensor]:
    r""":math:`\sum_i E(v_i, h_i)` as a function of h alone: of p(h|v), at v (B, *event), whose features are had once.

    Example:
        >>> from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
        >>> model, v, h = GaussianLatentModel(v_dim=2, h_dim=3), torch.rand(5, 2), torch.rand(5, 3)
        >>> bool(latent_energy(model, v)(h) == joint_energy(model)(v, h))
        True
    """
    with torch.no_grad():
        energy = model.at(v)
    return lambda h: energy(h).sum()
