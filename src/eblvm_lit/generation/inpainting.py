"""Completion of images of which some pixels are missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from eblvm_lit.energies.base import Energy, MarginalEnergy
from eblvm_lit.errors import ConfigError
from eblvm_lit.generation.annealed_chains import Chains, free_energy, joint_energy
from eblvm_lit.generation.annealed_samples import AnnealedSamples
from eblvm_lit.generation.sample_noise import SampleNoise

__all__ = ["InpaintingSamples"]


class InpaintingSamples:
    r"""Draws the missing pixels of images given the others, by annealed Langevin dynamics.

    .. math:: v \leftarrow v + (1 - m) \odot \bigl(\sqrt{T_t}\, \varepsilon\, \xi
        - \tfrac12 \varepsilon^2 \nabla_v E\bigr), \quad v_0 = m \odot v + (1 - m) \odot (0.5 + \xi_0)

    where m is 1 at pixels that are kept: those stay bit by bit. The last step moves missing pixels alone, too. A model
    with a free energy moves down that; of another one the real latents move along, freely, so that they fit what is
    kept: latents of a posterior would need the whole image. Reference: Bao et al. 2021, code; Li et al. 2019.

    Args:
        sampler: The dynamics, and how many chains run at a time; its kind has no meaning here.

    Example:
        >>> from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
        >>> from eblvm_lit.samplers.annealed_langevin import AnnealedLangevin
        >>> short = AnnealedSamples(langevin=AnnealedLangevin(n_hot=0, n_falling=10, n_cold=0))
        >>> v, keep = torch.ones(1, 3), torch.tensor([[1.0, 0.0, 1.0]])
        >>> full = InpaintingSamples(sampler=short).draw(GaussianLatentModel(v_dim=3, h_dim=2), v, keep, seed=0)
        >>> (full == v).tolist()
        [[True, False, True]]
    """

    def __init__(self, *, sampler: AnnealedSamples) -> None:
        self.sampler = sampler

    @staticmethod
    def supports(energy: object) -> bool:
        """Whether a model's images can be completed: it has a free energy or real latents."""
        return isinstance(energy, MarginalEnergy) or (isinstance(energy, Energy) and energy.continuous)

    def draw(
        self,
        energy: Energy,
        v: Tensor,
        keep: Tensor,
        *,
        seed: int,
        samples: Sequence[int] | None = None,
        on_step: Callable[[int], None] | None = None,
    ) -> Tensor:
        """One completion of each image.

        Args:
            energy: The model.
            v: Images, shape (n, *event); missing pixels are not looked at.
            keep: m, 1 where a pixel is kept and 0 where it is missing, shape (n, *event).
            seed: Of the noise.
            samples: Index of each sample's noise; 0, ..., n - 1 if not given.
            on_step: Called with the number of samples that have moved a step.

        Returns:
            Shape (n, *event).

        Raises:
            ConfigError: For a model with neither a free energy nor real latents, without any image, or if the chains
                diverge.
        """
        if not self.supports(energy):
            raise ConfigError(f"{type(energy).__name__} has neither a free energy nor real latents: no inpainting.")
        p, langevin = next(energy.parameters()), self.sampler.langevin
        v, missing = v.to(p), 1 - keep.to(p)

        def prepare(rows: slice, noise: SampleNoise) -> Chains:
            moving = missing[rows]
            start = langevin.start(tuple(energy.event_shape), noise, dtype=p.dtype)
            start = torch.where(moving == 0, v[rows], start)
            if isinstance(energy, MarginalEnergy):
                return Chains(free_energy(energy), (start,), moving=(moving,))
            h = langevin.start((energy.h_dim,), noise, dtype=p.dtype)
            return Chains(joint_energy(energy), (start, h), moving=(moving, 1.0), denoised=(True, False))

        samples = range(len(v)) if samples is None else samples
        return torch.cat([x[0] for x in self.sampler.run(energy, prepare, samples, seed=seed, on_step=on_step)])
