"""The joint energy of a generator whose latents have a learnt energy-based prior."""

from __future__ import annotations

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn

from eblvm_lit.core.tensors import at_least_float32, sum_event
from eblvm_lit.energies.base import Energy
from eblvm_lit.networks.base import GeneratorNetwork

__all__ = ["LatentPriorEnergy"]


class LatentPriorEnergy(Energy):
    r"""The joint energy of a latent-space energy-based prior p(h) and a generator p(v|h) with Gaussian noise.

    .. math:: E(v, h) = f(h) + \tfrac12 \|h\|^2 + \frac{\|v - g(h)\|^2}{2 \sigma^2}, \quad
        p(h) \propto e^{-f(h) - \|h\|^2 / 2}, \quad p(v|h) = N(g(h), \sigma^2 I)

    v appears only in the last term. The gradient in v costs one forward pass through g, no backward pass, and does not
    contain f: f changes the score of v only through the posterior of h. Bi-level score matching without a hypergradient
    (``hypergradient=none``) therefore does not train f; unrolled steps do, and so does the covariance term of VaGES.
    With a small sigma the posterior is narrow, and f hardly changes the score. f is computed in the dtype of h even
    under autocast, because its gradient is a small difference of two means. Reference: Pang et al. 2020,
    arXiv 2006.08205.

    Args:
        h_dim: The number of latents m.
        generator: g, a module that maps h (B, m) to v (B, *event), each example separately, and has the attributes
            ``event_shape`` and ``h_dim``.
        prior: f, a module that maps h (B, m) to (B, 1).
        std: The standard deviation sigma of p(v|h), in the units of v.

    Example:
        >>> from eblvm_lit.networks.smooth_mlp import SmoothMLP
        >>> energy = LatentPriorEnergy(
        ...     h_dim=3, generator=SmoothMLP(sizes=[3, 8, 2]), prior=SmoothMLP(sizes=[3, 8, 1]), std=0.3)
        >>> energy(torch.zeros(5, 2), torch.zeros(7, 5, 3)).shape
        torch.Size([7, 5])
    """

    continuous = True

    def __init__(
        self, *, h_dim: PositiveInt, generator: GeneratorNetwork, prior: nn.Module, std: PositiveFloat = 0.3
    ) -> None:
        super().__init__()
        self.event_shape = tuple(generator.event_shape)
        self.h_dim = h_dim
        self.std = std
        self.generator = generator
        self.prior = prior

    def tilt(self, h: Tensor) -> Tensor:
        """Compute the tilt f(h), the prior's energy minus the energy of N(0, I), shape (*L, B), for h (*L, B, m)."""
        with torch.autocast(h.device.type, enabled=False):
            return self.prior(h.reshape(-1, self.h_dim)).view(h.shape[:-1])

    def prior_energy(self, h: Tensor) -> Tensor:
        r"""Compute the prior's energy :math:`f(h) + \tfrac12 \|h\|^2`, shape (*L, B), for h (*L, B, m)."""
        return self.tilt(h) + 0.5 * h.square().sum(-1)

    def decode(self, h: Tensor) -> Tensor:
        """Compute the generator's output g(h), the mean of v given h, shape (*L, B, *event), for h (*L, B, m)."""
        return at_least_float32(self.generator(h.reshape(-1, self.h_dim))).view(*h.shape[:-1], *self.event_shape)

    def energy(self, v: Tensor, h: Tensor) -> Tensor:
        """Compute E(v, h), shape (*L, B), for v (B, *event) and h (*L, B, m)."""
        return self.prior_energy(h) + self.reconstruction_energy(v, h)

    def reconstruction_energy(self, v: Tensor, h: Tensor) -> Tensor:
        r"""Compute -log p(v|h) up to a constant, :math:`\|v - g(h)\|^2 / (2 \sigma^2)`, shape (*L, B)."""
        return sum_event((v - self.decode(h)).square(), h.dim() - 1) / (2 * self.std**2)
