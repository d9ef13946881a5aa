"""Visible units of a deep model at given latents."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from eblvm_lit.energies.base import Energy
from eblvm_lit.generation.annealed_chains import Chains, visible_energy
from eblvm_lit.generation.annealed_samples import AnnealedSamples
from eblvm_lit.generation.sample_noise import SampleNoise

__all__ = ["ConditionalSamples"]


class ConditionalSamples:
    r"""Draws v ~ p(v|h) by annealed Langevin dynamics of v while h stays.

    .. math:: v \leftarrow v - \tfrac12 \varepsilon^2 \nabla_v E(v, h) + \sqrt{T_t}\, \varepsilon\, \xi, \quad
        v \leftarrow v - \sigma_0^2 \nabla_v E(v, h) \text{ at the end}

    Reference: Bao et al. 2020, section 5.2, and code.

    Args:
        sampler: The dynamics, and how many chains run at a time.

    Example:
        >>> from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
        >>> from eblvm_lit.samplers.annealed_langevin import AnnealedLangevin
        >>> short = AnnealedSamples(langevin=AnnealedLangevin(n_hot=0, n_falling=10, n_cold=0))
        >>> model = GaussianLatentModel(v_dim=2, h_dim=3)
        >>> ConditionalSamples(sampler=short).draw(model, torch.zeros(5, 3), seed=0).shape
        torch.Size([5, 2])
    """

    def __init__(self, *, sampler: AnnealedSamples) -> None:
        self.sampler = sampler

    def draw(
        self,
        energy: Energy,
        h: Tensor,
        *,
        seed: int,
        samples: Sequence[int] | None = None,
        start: Tensor | None = None,
        on_step: Callable[[int], None] | None = None,
    ) -> Tensor:
        """One v for each h.

        Args:
            energy: The model.
            h: Shape (n, H); several rows may be equal.
            seed: Of the noise.
            samples: Index of each sample's noise; 0, ..., n - 1 if not given.
            start: Where the chains begin, shape (n, *event); 0.5 + N(0, I) if not given.
            on_step: Called with the number of samples that have moved a step.

        Returns:
            Shape (n, *event).

        Raises:
            ConfigError: Without any h, or if the chains diverge.
        """
        langevin, h = self.sampler.langevin, h.to(next(energy.parameters()))

        def prepare(rows: slice, noise: SampleNoise) -> Chains:
            v = langevin.start(tuple(energy.event_shape), noise, dtype=h.dtype)  # drawn in any case: the rest is equal
            return Chains(visible_energy(energy, h[rows]), (v if start is None else start[rows].to(h),))

        samples = range(len(h)) if samples is None else samples
        return torch.cat([v for (v,) in self.sampler.run(energy, prepare, samples, seed=seed, on_step=on_step)])
