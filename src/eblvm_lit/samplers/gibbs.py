"""Block Gibbs sampling between visible and latent units."""

from __future__ import annotations

from typing import cast

import torch
from pydantic import PositiveInt
from torch import Tensor

from eblvm_lit.energies.base import ConditionalEnergy, Energy
from eblvm_lit.errors import ConfigError
from eblvm_lit.samplers.base import Sampler
from eblvm_lit.samplers.langevin import tensor_of

__all__ = ["Gibbs"]


class Gibbs(Sampler):
    r"""Block Gibbs sampling of an energy whose conditionals p(h|v) and p(v|h) can be sampled.

    .. math:: v_0 \sim U[0, 1]^d, \quad h_0 = E[h|v_0], \quad v_t \sim p(v|h_{t-1}), \; h_t \sim p(h|v_t)

    Only the first latents are means instead of draws. Reference: Bao et al. 2020, section 5.1 and code.

    Args:
        n_steps: Number of sweeps.

    Raises:
        ConfigError: At sampling, for an energy without drawable conditionals.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> Gibbs(n_steps=10).sample(GRBM(v_dim=2, h_dim=3), 5, torch.Generator()).shape
        torch.Size([5, 2])
    """

    def __init__(self, *, n_steps: PositiveInt = 1000) -> None:
        self.n_steps = n_steps

    @staticmethod
    def supports(energy: object) -> bool:
        """Whether p(h|v) and p(v|h) of this energy can be sampled."""
        return isinstance(energy, ConditionalEnergy)

    @torch.no_grad()
    def latents(self, energy: Energy, n: int, generator: torch.Generator) -> Tensor:
        """The latents of n independent chains after the last sweep, shape (n, H)."""
        if not isinstance(energy, ConditionalEnergy):
            raise ConfigError(
                f"{type(energy).__name__} has no conditionals p(h|v), p(v|h) to draw from, "
                "which Gibbs sampling needs: use Langevin dynamics."
            )
        like = tensor_of(energy, generator.device)
        v = torch.rand((n, *energy.event_shape), generator=generator, dtype=like.dtype, device=like.device)
        h = energy.latent_mean(v)
        for _ in range(self.n_steps):
            h = energy.sample_latent(energy.sample_visible(h, generator), generator)
        return h

    @torch.no_grad()
    def sample(self, energy: Energy, n: int, generator: torch.Generator, *, mean: bool = False) -> Tensor:
        """Samples of v from n independent chains.

        Args:
            energy: The model; its device and type are those of the samples.
            n: Number of chains.
            generator: Source of all randomness, on the energy's device.
            mean: Whether to return E[v|h] at the last latents, as for images, instead of a draw v ~ p(v|h).

        Returns:
            Shape (n, *event).
        """
        h = self.latents(energy, n, generator)
        model = cast(ConditionalEnergy, energy)
        return model.visible_mean(h) if mean else model.sample_visible(h, generator)
