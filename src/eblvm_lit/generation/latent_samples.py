"""Latents of a deep model at given v."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from eblvm_lit.energies.base import Energy
from eblvm_lit.errors import ConfigError
from eblvm_lit.generation.annealed_chains import Chains, latent_energy
from eblvm_lit.generation.annealed_samples import AnnealedSamples
from eblvm_lit.generation.sample_noise import SampleNoise

__all__ = ["LatentSamples"]


class LatentSamples:
    r"""Draws h ~ p(h|v) by annealed Langevin dynamics of real latents while v stays.

    .. math:: h \leftarrow h - \tfrac12 \varepsilon^2 \nabla_h E(v, h) + \sqrt{T_t}\, \varepsilon\, \xi

    There is no last step that takes data noise away: latents carry none. Reference: Bao et al. 2020, code.

    Args:
        sampler: The dynamics, and how many chains run at a time.

    Example:
        >>> from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
        >>> from eblvm_lit.samplers.annealed_langevin import AnnealedLangevin
        >>> short = AnnealedSamples(langevin=AnnealedLangevin(n_hot=0, n_falling=10, n_cold=0))
        >>> model = GaussianLatentModel(v_dim=2, h_dim=3)
        >>> LatentSamples(sampler=short).draw(model, torch.zeros(5, 2), seed=0).shape
        torch.Size([5, 3])
    """

    def __init__(self, *, sampler: AnnealedSamples) -> None:
        self.sampler = sampler

    def draw(
        self,
        energy: Energy,
        v: Tensor,
        *,
        seed: int,
        samples: Sequence[int] | None = None,
        on_step: Callable[[int], None] | None = None,
    ) -> Tensor:
        """One h for each v.

        Args:
            energy: The model.
            v: Shape (n, *event).
            seed: Of the noise.
            samples: Index of each sample's noise; 0, ..., n - 1 if not given.
            on_step: Called with the number of samples that have moved a step.

        Returns:
            Shape (n, H).

        Raises:
            ConfigError: For a model without real latents, without any v, or if the chains diverge.
        """
        if not isinstance(energy, Energy) or not energy.continuous or energy.h_dim < 1:
            raise ConfigError(
                f"{type(energy).__name__} has no real latents, which Langevin dynamics of h need: use a model that has."
            )
        langevin, v = self.sampler.langevin, v.to(next(energy.parameters()))

        def prepare(rows: slice, noise: SampleNoise) -> Chains:
            h = langevin.start((energy.h_dim,), noise, dtype=v.dtype)
            return Chains(latent_energy(energy, v[rows]), (h,), denoised=(False,))

        samples = range(len(v)) if samples is None else samples
        return torch.cat([h for (h,) in self.sampler.run(energy, prepare, samples, seed=seed, on_step=on_step)])
