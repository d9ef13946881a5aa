"""The deep Boltzmann machine (DBM) of binary visible units and two layers of binary latent units."""

from __future__ import annotations

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor, nn

from eblvm_lit.energies.bernoulli_rbm import BernoulliRBM
from eblvm_lit.energies.binary_layers import BinaryEnergy, Layers
from eblvm_lit.errors import ConfigError

__all__ = ["DeepBoltzmannMachine"]


class DeepBoltzmannMachine(BinaryEnergy):
    r"""The energy of binary visible units v and latents h = (h_1, h_2) in two layers, all of them bits.

    .. math:: E(v, h) = -(v - \alpha)^\top W_1 (h_1 - \tfrac12) - (h_1 - \tfrac12)^\top W_2 (h_2 - \tfrac12)
        - b^\top v - c_1^\top h_1 - c_2^\top h_2

    with the mean :math:`\alpha` of the training examples; see
    :class:`~eblvm_lit.energies.binary_layers.BinaryEnergy`. The groups are x = h_1 and y = (v, h_2). p(h|v) has no
    closed form. The mean-field posterior :math:`q(h|v) = \prod_j \mathrm{Bernoulli}(h_j; \mu_j)` maximises the bound

    .. math:: -F(v) \ge -E(v, \mu) + H(q), \qquad
        \mu_1 = \mathrm{sigmoid}(c_1 + W_1^\top (v - \alpha) + W_2 (\mu_2 - \tfrac12)), \;
        \mu_2 = \mathrm{sigmoid}(c_2 + W_2^\top (\mu_1 - \tfrac12))

    where :math:`E_q[E(v, h)] = E(v, \mu)`, because E is linear in each latent. Each update of one layer raises the
    bound. Reference: Salakhutdinov and Hinton 2009, sections 2 and 3.

    Args:
        v_dim: The number of visible units d.
        h_dim: The number of latent units of both layers.
        h1_dim: The number of those in the first layer.
        n_mean_field: The number of updates of both layers by which mu is computed.
        weight_scale: The standard deviation of the initial entries of W_1 and W_2.

    Example:
        >>> dbm = DeepBoltzmannMachine(v_dim=4, h_dim=5, h1_dim=3)
        >>> dbm.energy(torch.zeros(5, 4), torch.zeros(7, 5, 5)).shape, dbm.free_energy_bound(torch.zeros(5, 4)).shape
        (torch.Size([7, 5]), torch.Size([5]))
    """

    def __init__(
        self,
        *,
        v_dim: PositiveInt,
        h_dim: PositiveInt,
        h1_dim: PositiveInt,
        n_mean_field: PositiveInt = 10,
        weight_scale: NonNegativeFloat = 0.01,
    ) -> None:
        super().__init__(v_dim=v_dim, h_dim=h_dim)
        h2_dim = h_dim - h1_dim
        self.widths = (h1_dim, h2_dim)
        self.n_mean_field = n_mean_field
        self.W1 = nn.Parameter(weight_scale * torch.randn(v_dim, h1_dim))
        self.W2 = nn.Parameter(weight_scale * torch.randn(h1_dim, h2_dim))
        self.c1 = nn.Parameter(torch.zeros(h1_dim))
        self.c2 = nn.Parameter(torch.zeros(h2_dim))

    @torch.no_grad()
    def begin_with(self, rbm: BernoulliRBM) -> None:
        """Take over the weights, the biases and the offset of a trained RBM whose latents are the first layer.

        With W_2 = 0 the distribution of v is that of the RBM; the small random W_2 of a new DBM changes it little.

        Raises:
            ConfigError: If the RBM has other sizes than v and the first layer.

        Example:
            >>> dbm = DeepBoltzmannMachine(v_dim=4, h_dim=5, h1_dim=3, weight_scale=0.0)
            >>> rbm = BernoulliRBM(v_dim=4, h_dim=3)
            >>> dbm.begin_with(rbm)
            >>> two_bits = dbm.log_partition() - rbm.log_partition()  # the second layer has two bits of no effect
            >>> round(two_bits.exp().item(), 3)
            4.0
        """
        if rbm.W.shape != self.W1.shape:
            raise ConfigError(f"The RBM has {tuple(rbm.W.shape)} units, and v and h_1 {tuple(self.W1.shape)}.")
        pairs = {self.W1: rbm.W, self.c1: rbm.c, self.b: rbm.b, self.v_offset: rbm.v_offset, self.fitted: rbm.fitted}
        for own, other in pairs.items():
            own.copy_(other)

    def layers(self) -> Layers:
        """Return the energy with x = h_1 and y = (v, h_2)."""
        pull = self.v_offset @ self.W1 + 0.5 * self.W2.sum(1)
        others = torch.cat([self.b - 0.5 * self.W1.sum(1), self.c2 - 0.5 * self.W2.sum(0)])
        return Layers(self.c1 - pull, torch.cat([self.W1.T, self.W2], 1), others, -0.5 * pull.sum())

    def coupling(self) -> Tensor:
        """Return the couplings W_1, shape (d, m_1)."""
        return self.W1

    def base_biases(self, b: Tensor) -> tuple[Tensor, Tensor]:
        """Return zeros for h_1, and b with zeros for h_2."""
        return torch.zeros_like(self.c1), torch.cat([b, torch.zeros_like(self.c2)])

    def visible_of(self, x: Tensor, y: Tensor) -> Tensor:
        """Return v, which is the first d bits of y."""
        return y[..., : len(self.b)]

    def energy(self, v: Tensor, h: Tensor) -> Tensor:
        """Compute E(v, h), shape (*L, B), for v (B, d) and h (*L, B, m_1 + m_2)."""
        first, second = h.split(self.widths, -1)
        field = (v - self.v_offset) @ self.W1 + (second - 0.5) @ self.W2.T
        return -(v @ self.b) - first @ self.c1 - second @ self.c2 - ((first - 0.5) * field).sum(-1)

    def first_logits(self, v: Tensor, second: Tensor) -> Tensor:
        """Compute the logits of p(h_1 = 1 | v, h_2), shape (B, m_1), for v (B, d) and h_2 (B, m_2)."""
        return self.c1 + (v - self.v_offset) @ self.W1 + (second - 0.5) @ self.W2.T

    def second_logits(self, first: Tensor) -> Tensor:
        """Compute the logits of p(h_2 = 1 | h_1), shape (B, m_2), for h_1 (B, m_1)."""
        return self.c2 + (first - 0.5) @ self.W2

    def latent_mean(self, v: Tensor) -> Tensor:
        """Compute the means mu of the mean-field posterior, shape (B, m_1 + m_2)."""
        of_v = self.c1 + (v - self.v_offset) @ self.W1  # the part of the logits of h_1 that all updates share
        second = v.new_full((len(v), self.widths[1]), 0.5)
        first = of_v.sigmoid()
        for _ in range(self.n_mean_field):
            second = self.second_logits(first).sigmoid()
            first = (of_v + (second - 0.5) @ self.W2.T).sigmoid()
        return torch.cat([first, second], -1)

    def move_latent(self, v: Tensor, h: Tensor, noise: Tensor) -> Tensor:
        """Draw h_1 ~ p(h_1|v, h_2) and then h_2 ~ p(h_2|h_1), for h (B, m_1 + m_2) and uniform noise of its shape."""
        u_first, u_second = noise.split(self.widths, -1)
        first = (u_first < self.first_logits(v, h[..., self.widths[0] :]).sigmoid()).to(noise.dtype)
        second = (u_second < self.second_logits(first).sigmoid()).to(noise.dtype)
        return torch.cat([first, second], -1)

    def visible_mean(self, h: Tensor) -> Tensor:
        """Compute the probabilities p(v = 1 | h_1), shape (*L, B, d), for h (*L, B, m_1 + m_2)."""
        return (self.b + (h[..., : self.widths[0]] - 0.5) @ self.W1.T).sigmoid()

    def free_energy_bound(self, v: Tensor) -> Tensor:
        """Compute E(v, mu) - H(q), an upper bound of the free energy F(v) by the mean-field posterior, shape (B,)."""
        mu = self.latent_mean(v)
        return self.energy(v, mu) - (torch.special.entr(mu) + torch.special.entr(1 - mu)).sum(-1)
