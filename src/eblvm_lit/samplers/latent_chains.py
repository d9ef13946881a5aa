"""Langevin chains of latents, towards a learnt prior and towards the posterior of given v."""

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
    r"""The total of :math:`f(h) + \tfrac12 \|h\|^2`, a number, as a function of latents h (B, H)."""
    return lambda h: energy.prior_energy(h).sum()


def posterior_energy(energy: Energy, v: Tensor) -> TotalEnergy:
    """The total of E(v, h), a number, as a function of latents h (B, H)."""
    energy_at_v = energy.at(v)
    return lambda h: energy_at_v(h).sum()


def run_chain(langevin: Langevin, energy: TotalEnergy, noise: dict[str, Tensor]) -> Tensor:
    """Where a chain of latents is after its last step, shape (B, H).

    Args:
        langevin: The steps.
        energy: The total energy of latents.
        noise: ``start`` (B, H), where it starts, and ``steps`` (n_steps, B, H).

    Example:
        >>> noise = {"start": torch.ones(5, 3), "steps": torch.zeros(2, 5, 3)}
        >>> run_chain(Langevin(n_steps=2, step_size=0.2), lambda h: h.square().sum() / 2, noise)[0]
        tensor([0.8100, 0.8100, 0.8100])
    """
    return langevin.run(energy, (noise["start"],), (noise["steps"],))[0]


class PosteriorChain(nn.Module):
    """Latents of v by Langevin steps from N(0, I) down E(v, h): an encoder without a network.

    All v share the start and the noise, which are a function of the seed: h is a function of v alone, whatever the
    batch. Each h is a draw of the short-run chain; those of different v are not independent.

    Args:
        energy: The model.
        langevin: The steps.
        seed: Of the start and of the noise.

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
        """h, shape (B, H), of v (B, *event)."""
        return self.draws(v, 1)[0]

    def draws(self, v: Tensor, n: int) -> Tensor:
        """Some h of each v, shape (n, B, H), of different chains; the first is that of :meth:`forward`."""
        found = []
        for i in range(n):
            generator = keyed_generator(self.seed, "posterior chain", i)
            noise = torch.randn(1 + self.langevin.n_steps, 1, self.h_dim, generator=generator).to(v)
            noise = noise.expand(-1, len(v), -1)
            with plain_autograd():
                chain = {"start": noise[0], "steps": noise[1:]}
                found.append(run_chain(self.langevin, posterior_energy(self.energy, v), chain))
        return torch.stack(found)
