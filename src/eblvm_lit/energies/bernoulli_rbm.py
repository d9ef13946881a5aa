"""The restricted Boltzmann machine (RBM) of binary visible and binary latent units."""

from __future__ import annotations

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor, nn
from torch.nn.functional import softplus

from eblvm_lit.energies.base import ConditionalEnergy
from eblvm_lit.energies.binary_layers import BinaryEnergy, Layers

__all__ = ["BernoulliRBM"]


class BernoulliRBM(BinaryEnergy, ConditionalEnergy):
    r"""The energy of binary visible units v and binary latent units h that are independent given each other.

    .. math:: E(v, h) = -(v - \alpha)^\top W (h - \tfrac12) - b^\top v - c^\top h

    with the mean :math:`\alpha` of the training examples; see
    :class:`~eblvm_lit.energies.binary_layers.BinaryEnergy`. Reference: Salakhutdinov and Murray 2008, section 2.

    Args:
        v_dim: The number of visible units d.
        h_dim: The number of latent units m.
        weight_scale: The standard deviation of the initial entries of W.

    Example:
        >>> rbm = BernoulliRBM(v_dim=4, h_dim=3)
        >>> rbm.energy(torch.zeros(5, 4), torch.zeros(7, 5, 3)).shape
        torch.Size([7, 5])
    """

    def __init__(self, *, v_dim: PositiveInt, h_dim: PositiveInt, weight_scale: NonNegativeFloat = 0.01) -> None:
        super().__init__(v_dim=v_dim, h_dim=h_dim)
        self.W = nn.Parameter(weight_scale * torch.randn(v_dim, h_dim))
        self.c = nn.Parameter(torch.zeros(h_dim))

    def layers(self) -> Layers:
        """Return the energy with x = v and y = h."""
        pull = self.v_offset @ self.W
        return Layers(self.b - 0.5 * self.W.sum(1), self.W, self.c - pull, -0.5 * pull.sum())

    def coupling(self) -> Tensor:
        """Return the couplings W, shape (d, m)."""
        return self.W

    def base_biases(self, b: Tensor) -> tuple[Tensor, Tensor]:
        """Return b, and zeros for the biases of the latents."""
        return b, torch.zeros_like(self.c)

    def visible_of(self, x: Tensor, y: Tensor) -> Tensor:
        """Return v, which is the group x."""
        return x

    def energy(self, v: Tensor, h: Tensor) -> Tensor:
        """Compute E(v, h), shape (*L, B), for v (B, d) and h (*L, B, m)."""
        return -(v @ self.b) - h @ self.c - ((h - 0.5) * ((v - self.v_offset) @ self.W)).sum(-1)

    def free_energy(self, v: Tensor) -> Tensor:
        r"""Compute the free energy F(v), shape (B,).

        .. math:: F(v) = -b^\top v + \sum_j \tfrac12 z_j - \log(1 + e^{c_j + z_j}), \quad z = W^\top (v - \alpha)
        """
        z = (v - self.v_offset) @ self.W
        return -(v @ self.b) + (0.5 * z - softplus(self.c + z)).sum(-1)

    def latent_logits(self, v: Tensor) -> Tensor:
        r"""Compute the logits of p(h=1|v), :math:`c + W^\top (v - \alpha)`, shape (B, m)."""
        return self.c + (v - self.v_offset) @ self.W

    def latent_mean(self, v: Tensor) -> Tensor:
        """Compute the posterior mean E[h|v], shape (B, m)."""
        return self.latent_logits(v).sigmoid()

    def draw_latent(self, v: Tensor, noise: Tensor) -> Tensor:
        """Turn uniform noise (*L, B, m) into bits h ~ p(h|v) of the same shape."""
        return (noise < self.latent_mean(v)).to(noise.dtype)

    def visible_mean(self, h: Tensor) -> Tensor:
        r"""Compute the probabilities p(v=1|h), the sigmoid of :math:`b + W (h - \tfrac12)`, shape (*L, B, d)."""
        return (self.b + (h - 0.5) @ self.W.T).sigmoid()
