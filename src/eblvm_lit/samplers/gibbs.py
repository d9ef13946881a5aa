"""Block Gibbs sampling between visible and latent units."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from pydantic import PositiveInt
from torch import Tensor

from eblvm_lit.energies.base import Energy, GibbsEnergy
from eblvm_lit.errors import ConfigError
from eblvm_lit.samplers.dynamics import Chains, Dynamics
from eblvm_lit.samplers.energy_grad import unrounded
from eblvm_lit.samplers.sample_noise import SampleNoise
from eblvm_lit.samplers.sampler import in_large_batches

__all__ = ["Gibbs"]

SWEEPS = 50  # the number of sweeps for which noise is drawn at once


class Gibbs(Dynamics):
    r"""Block Gibbs sampling of an energy whose p(v|h) can be sampled, and whose h can be drawn or moved given v.

    .. math:: v_0 \sim U[0, 1]^d, \quad h_0 = E[h|v_0], \quad v_t \sim p(v|h_{t-1}), \; h_t \sim p(h|v_t), \quad
        v \sim p(v|h_n) \text{ at the end}

    If p(h|v) cannot be sampled, h_t is moved from h_{t-1} by draws of one layer of latents at a time, and h_0 is the
    mean-field approximation of E[h|v_0]. Only the initial latents h_0 are means instead of draws. Given latents and
    kept pixels of v do not change. Reference: Bao et al. 2020, section 5.1 and code.

    Args:
        n_steps: The number n of sweeps.
        mean: Whether the result is E[v|h_n], as usual for images, instead of a draw from p(v|h_n).

    Raises:
        ConfigError: When sampling, if the conditionals of the energy cannot be sampled.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> Gibbs(n_steps=10).sample(GRBM(v_dim=2, h_dim=3), 5, torch.Generator()).shape
        torch.Size([5, 2])
    """

    kinds = ("gibbs",)
    moves_bits = True
    denoise_std = 0.0

    def __init__(self, *, n_steps: PositiveInt = 1000, mean: bool = False) -> None:
        self.n_steps = n_steps
        self.mean = mean

    @staticmethod
    def supports(energy: object) -> bool:
        """Return whether this energy can be sampled in blocks."""
        return isinstance(energy, GibbsEnergy)

    @property
    def title(self) -> str:
        """A short description of the samples, for figures and messages."""
        return f"Gibbs samples, {self.n_steps} sweeps"

    def of_means(self) -> Gibbs:
        """Return a copy whose final v is the mean E[v|h] instead of a sample from p(v|h)."""
        chains = copy.copy(self)
        chains.mean = True
        return chains

    def start(self, shape: tuple[int, ...], noise: SampleNoise, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """Draw the initial v uniformly from [0, 1], shape (B, *shape)."""
        return noise.uniform(shape, dtype=dtype)

    def steps(self, chains: Chains, noise: SampleNoise) -> Iterator[tuple[Tensor, ...]]:
        """Yield v and h after each sweep, or only v if the latents h are given; see :meth:`Dynamics.steps`."""
        energy = _conditional(chains)
        h = (*chains.start, *chains.given)[-1]
        for first in range(0, self.n_steps, SWEEPS):
            shape = (min(SWEEPS, self.n_steps - first),)
            of_v = noise.rows(lambda g, shape=shape: energy.visible_noise(shape, chains.start[0], g))
            of_h = noise.rows(lambda g, shape=shape: energy.latent_noise(shape, chains.start[0], g))
            for v_noise, h_noise in zip(of_v.unbind(1), of_h.unbind(1), strict=True):
                v = chains.kept(unrounded(energy.draw_visible, h, v_noise))
                h = h if chains.given else unrounded(energy.move_latent, v, h, h_noise)
                yield (v,) if chains.given else (v, h)

    def trajectory(self, chains: Chains, noise: SampleNoise) -> Iterator[tuple[Tensor, ...]]:
        """Yield the variables after each sweep, and a final v given the last h; see :meth:`Dynamics.trajectory`."""
        x = chains.start
        for x in self.steps(chains, noise):
            yield x
        energy = _conditional(chains)
        h = (*x, *chains.given)[-1]
        v_noise = noise.rows(lambda g: energy.visible_noise((), h, g))
        v = unrounded(energy.visible_mean, h) if self.mean else unrounded(energy.draw_visible, h, v_noise)
        yield (chains.kept(v), *x[1:])

    def sample(self, energy: Energy, n: int, generator: torch.Generator, *, mean: bool = False) -> Tensor:
        """Draw samples of v from n independent chains.

        Args:
            energy: The joint energy; the samples have its device and dtype.
            n: The number of chains.
            generator: The generator that draws the seed of all noise.
            mean: Whether to return E[v|h] for the last latents, as usual for images, instead of a draw from p(v|h).

        Returns:
            The samples, shape (n, *event).
        """
        return in_large_batches(self.of_means() if mean else self, energy).sample(energy, n, generator)


def _conditional(chains: Chains) -> GibbsEnergy:
    """Return the energy of the chains, or raise an error if its conditionals cannot be sampled."""
    if chains.conditional is None:
        raise ConfigError("Gibbs sampling needs p(h|v), p(v|h) to draw from: use Langevin dynamics.")
    return chains.conditional
