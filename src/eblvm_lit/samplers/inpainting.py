"""Completion of images with missing pixels by annealed Langevin dynamics."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from eblvm_lit.energies.base import Energy, MarginalEnergy
from eblvm_lit.errors import ConfigError
from eblvm_lit.samplers.annealed_langevin import Chains
from eblvm_lit.samplers.annealed_samples import AnnealedSamples
from eblvm_lit.samplers.sample_noise import SampleNoise

__all__ = ["can_inpaint", "inpaint"]


def can_inpaint(energy: Energy | None) -> bool:
    """Whether a model can complete images: it has a free energy or real latents."""
    return isinstance(energy, MarginalEnergy) or (isinstance(energy, Energy) and energy.continuous)


def inpaint(
    sampler: AnnealedSamples,
    energy: Energy,
    v: Tensor,
    keep: Tensor,
    *,
    seed: int,
    h: Tensor | None = None,
    on_step: Callable[[int], None] | None = None,
) -> Tensor:
    r"""Draw the missing pixels of images given the others.

    .. math:: v \leftarrow v + (1 - m) \odot \bigl(\sqrt{T_t}\, \varepsilon\, \xi
        - \tfrac12 \varepsilon^2 \nabla_v E\bigr), \quad v_0 = m \odot v + (1 - m) \odot (0.5 + \xi_0)

    m is 1 at kept pixels, which stay bit by bit; the last step, too, moves missing pixels alone. At given latents h, v
    moves down E(., h). Without them it moves down the free energy or, for a model that has none, down E together with
    the real latents, which then fit the kept pixels. Reference: Bao et al. 2021, code; Li et al. 2019.

    Args:
        sampler: The dynamics, and the number of chains that run at a time; its kind is not used.
        energy: The model.
        v: Images, shape (n, *event); the values of missing pixels are not used.
        keep: m, 1 where a pixel is kept and 0 where it is missing, shape (n, *event).
        seed: Of the noise.
        h: Latents that are held fixed, shape (n, H).
        on_step: Called with the number of samples that have moved a step.

    Returns:
        One completion of each image, shape (n, *event).

    Raises:
        ConfigError: For a model with neither a free energy nor real latents, without any image, or if the chains
            diverge.

    Example:
        >>> from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
        >>> from eblvm_lit.samplers.annealed_langevin import AnnealedLangevin
        >>> short = AnnealedSamples(langevin=AnnealedLangevin(n_hot=0, n_falling=10, n_cold=0))
        >>> v, keep = torch.ones(1, 3), torch.tensor([[1.0, 0.0, 1.0]])
        >>> (inpaint(short, GaussianLatentModel(v_dim=3, h_dim=2), v, keep, seed=0) == v).tolist()
        [[True, False, True]]
    """
    if not can_inpaint(energy):
        raise ConfigError(f"{type(energy).__name__} has neither a free energy nor real latents: no inpainting.")
    p, langevin = next(energy.parameters()), sampler.langevin
    v, missing = v.to(p), 1 - keep.to(p)

    def prepare(rows: slice, noise: SampleNoise) -> Chains:
        moving = missing[rows]
        start = langevin.start(tuple(energy.event_shape), noise, dtype=p.dtype)
        start = torch.where(moving == 0, v[rows], start)
        if h is not None:
            fixed = h[rows].to(p)
            return Chains(lambda v: energy.energy(v, fixed).sum(), (start,), moving=(moving,))
        if isinstance(energy, MarginalEnergy):
            free_energy = energy.free_energy
            return Chains(lambda v: free_energy(v).sum(), (start,), moving=(moving,))
        joint = (start, langevin.start((energy.h_dim,), noise, dtype=p.dtype))
        denoised = (True, sampler.denoise_latents)
        return Chains(lambda v, h: energy.energy(v, h).sum(), joint, moving=(moving, 1.0), denoised=denoised)

    return sampler.run(energy, prepare, range(len(v)), seed=seed, on_step=on_step)
