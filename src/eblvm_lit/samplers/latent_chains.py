"""Langevin chains of latents that sample a learnt prior p(h), or the posterior p(h|v) of given v."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from eblvm_lit.core.functional import plain_autograd
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.energies.base import Energy
from eblvm_lit.energies.latent_prior import LatentPriorEnergy
from eblvm_lit.samplers.langevin import Langevin

__all__ = ["PosteriorChain", "posterior_energy", "prior_energy", "run_chain"]

TotalEnergy = Callable[[Tensor], Tensor]


def prior_energy(energy: LatentPriorEnergy) -> TotalEnergy:
    r"""Return a function from latents h (B, H) to the sum of their prior energies :math:`f(h) + \tfrac12 \|h\|^2`."""
    return lambda h: energy.prior_energy(h).sum()


def posterior_energy(energy: Energy, v: Tensor) -> TotalEnergy:
    """Return a function that maps latents h (B, H) to the sum of E(v, h) over the batch, for the given v."""
    energy_at_v = energy.at(v)
    return lambda h: energy_at_v(h).sum()


def run_chain(langevin: Langevin, energy: TotalEnergy, noise: dict[str, Tensor]) -> Tensor:
    """Run chains of latents, and return the latents after the last step, shape (B, H).

    Args:
        langevin: The Langevin steps.
        energy: A function that maps the latents to their total energy.
        noise: The initial latents ``start`` (B, H), and the noise ``steps`` (n_steps, B, H).

    Example:
        >>> noise = {"start": torch.ones(5, 3), "steps": torch.zeros(2, 5, 3)}
        >>> run_chain(Langevin(n_steps=2, step_size=0.2), lambda h: h.square().sum() / 2, noise)[0]
        tensor([0.8100, 0.8100, 0.8100])
    """
    return langevin.run(energy, (noise["start"],), (noise["steps"],))[0]


class PosteriorChain(nn.Module):
    """An encoder without a network, which draws latents h of v by Langevin steps on E(v, h) started from N(0, I).

    All v share one start and one noise sequence, which are functions of the seed, so that h depends only on v and not
    on the batch. Each h is a sample of the short-run chain; the samples of different v are not independent.

    Args:
        energy: The joint energy.
        langevin: The Langevin steps.
        seed: The seed of the start and the noise.

    Example:
        >>> from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
        >>> model = GaussianLatentModel(v_dim=2, h_dim=3)
        >>> chain = PosteriorChain(energy=model, langevin=Langevin(n_steps=5, step_size=0.1))
        >>> h = chain(torch.ones(4, 2))
        >>> h.shape, bool((h[0] == h[3]).all())
        (torch.Size([4, 3]), True)
    """

    def __init__(self, *, energy: Energy, langevin: Langevin, seed: int = 0) -> None:
        super().__init__()
        self.energy = energy
        self.langevin = langevin
        self.seed = seed
        self.h_dim = energy.h_dim

    def forward(self, v: Tensor) -> Tensor:
        """Draw one latent vector h for each v (B, *event), shape (B, H)."""
        generator = keyed_generator(self.seed, "posterior chain", 0)
        noise = torch.randn(1 + self.langevin.n_steps, 1, self.h_dim, generator=generator).to(v)
        noise = noise.expand(-1, len(v), -1)
        with plain_autograd():
            chain = {"start": noise[0], "steps": noise[1:]}
            return run_chain(self.langevin, posterior_energy(self.energy, v), chain)
