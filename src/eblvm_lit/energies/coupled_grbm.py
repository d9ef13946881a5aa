"""A GRBM with coupled latents; its posterior does not factorise, and is computed by enumeration of all states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor, nn

from eblvm_lit.core.tensors import by_rows
from eblvm_lit.energies.grbm import GaussianBernoulliEnergy

__all__ = ["CoupledGRBM"]

MAX_LATENTS = 16
ELEMENTS = 2**22  # maximum number of pairs (v, latent state) evaluated at once; larger batches are split into blocks


class CoupledGRBM(GaussianBernoulliEnergy):
    r"""The energy of Gaussian visible units v and binary latent units h that depend on one another given v.

    .. math:: E(v, h) = \tfrac12 \|(v - b) / \sigma\|^2 - c^\top h - v^\top U h - \tfrac12 h^\top L h

    with U and :math:`\sigma` as in :class:`~eblvm_lit.energies.grbm.GRBM`, and L symmetric with a zero diagonal. E is
    linear in each latent. p(h|v) is a Boltzmann machine: no posterior with independent bits equals it unless L = 0.
    F(v), E[h|v], draws from p(h|v) and the score are exact, by enumeration of the :math:`2^m` latent states for each v.
    Reference: Salakhutdinov and Hinton 2009, whose visible units are binary and coupled, too.

    Args:
        v_dim: Number of visible units d.
        h_dim: Number of latent units m, from 2 to 16.
        coupling_scale: The standard deviation of the initial entries of L. With 0 the model starts as a GRBM.
        parametrisation: ``code`` or ``paper``; see :class:`~eblvm_lit.energies.grbm.GRBM`.
        learn_std: Whether log sigma is trained; it starts at 0.

    Example:
        >>> model = CoupledGRBM(v_dim=2, h_dim=3)
        >>> model.free_energy(torch.zeros(5, 2)).shape, model.latent_log_probs(torch.zeros(5, 2)).shape
        (torch.Size([5]), torch.Size([8, 5]))
    """

    def __init__(
        self,
        *,
        v_dim: PositiveInt,
        h_dim: Annotated[int, Field(ge=2, le=MAX_LATENTS)],
        coupling_scale: NonNegativeFloat = 1.0,
        parametrisation: Literal["code", "paper"] = "code",
        learn_std: bool = True,
    ) -> None:
        super().__init__(v_dim=v_dim, h_dim=h_dim, parametrisation=parametrisation, learn_std=learn_std)
        # L is stored as one number per pair of latents, so it stays symmetric with a zero diagonal during training.
        self.pairs = nn.Parameter(coupling_scale * torch.randn(h_dim * (h_dim - 1) // 2))

    def interactions(self) -> Tensor:
        """Build the symmetric matrix L (m, m) of the couplings between latents.

        The entries above the diagonal are ``pairs``, row by row.
        """
        row, column = torch.triu_indices(self.h_dim, self.h_dim, 1, device=self.pairs.device)
        upper = self.pairs.new_zeros(self.h_dim, self.h_dim).index_put((row, column), self.pairs)
        return upper + upper.T

    def _of_latents(self, h: Tensor) -> Tensor:
        return h @ self.c + 0.5 * (h @ self.interactions() * h).sum(-1)

    def energy(self, v: Tensor, h: Tensor) -> Tensor:
        """Compute E(v, h), shape (*L, B), for v (B, d) and h (*L, B, m)."""
        field = self.c + v @ self.coupling() + 0.5 * h @ self.interactions()
        return self._quadratic(v) - (h * field).sum(-1)

    def latent_states(self) -> Tensor:
        """Return all latent states, shape (S, m), where S = 2^m."""
        return self._states(0, 2**self.h_dim)

    def _by_rows(self, fn: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        return by_rows(fn, ELEMENTS // 2**self.h_dim, *tensors)

    def _exponents(self, v: Tensor) -> Tensor:
        """Compute the terms of -E(v, h) that contain h, for each v and each of the S latent states, shape (B, S).

        They are :math:`c^T h + v^T U h + h^T L h / 2`.
        """
        h = self.latent_states()
        return v @ self.coupling() @ h.T + self._of_latents(h)

    def free_energy(self, v: Tensor) -> Tensor:
        r"""Compute the free energy F(v), shape (B,).

        .. math:: F(v) = \tfrac12\|(v-b)/\sigma\|^2 - \log \sum_h e^{c^\top h + v^\top U h + h^\top L h / 2}
        """
        return self._quadratic(v) - self._by_rows(lambda v: self._exponents(v).logsumexp(-1), v)

    def latent_log_probs(self, v: Tensor) -> Tensor:
        """Compute log p(h|v) for every state in :meth:`latent_states`, shape (S, B)."""
        return self._exponents(v).log_softmax(-1).T

    def latent_mean(self, v: Tensor) -> Tensor:
        """Compute the posterior mean E[h|v], shape (B, m)."""
        return self._by_rows(lambda v: self._exponents(v).softmax(-1) @ self.latent_states(), v)

    def draw_latent(self, v: Tensor, noise: Tensor) -> Tensor:
        r"""Turn uniform noise u (*L, B, m) into bits h ~ p(h|v) of the same shape.

        :math:`h_j = 1` where :math:`u_j < p(h_j = 1 | h_1 \dots h_{j-1}, v)`.
        """
        return self._by_rows(self._draw, v, noise.movedim(-2, 0)).movedim(0, -2)

    def _draw(self, v: Tensor, noise: Tensor) -> Tensor:
        """Turn uniform noise (B, *L, m) into bits h ~ p(h|v) of the same shape."""
        # marginals[j], shape (B, 2^j), contains p(h_1 ... h_j | v); the bits of the column index are h_1 ... h_j
        marginals = [self._exponents(v).softmax(-1)]
        for j in reversed(range(self.h_dim)):
            marginals.insert(0, marginals[0].view(-1, 2, 2**j).sum(1))
        rows = torch.arange(len(v), device=v.device).view(-1, *[1] * (noise.dim() - 2))
        drawn = torch.zeros_like(rows)
        bits = []
        for j in range(self.h_dim):
            bit = noise[..., j] < marginals[j + 1][rows, drawn + 2**j] / marginals[j][rows, drawn]
            drawn = drawn + 2**j * bit
            bits.append(bit)
        return torch.stack(bits, -1).to(noise.dtype)

    def score_divergence(self, v: Tensor) -> Tensor:
        r"""Compute the trace of the Hessian of log p(v), shape (B,).

        .. math:: -\sum_i \sigma_i^{-2} + E[\|Uh\|^2 | v] - \|U E[h|v]\|^2
        """

        def variance(v: Tensor) -> Tensor:
            p = self._exponents(v).softmax(-1)
            pull = self.latent_states() @ self.coupling().T
            return p @ pull.square().sum(-1) - (p @ pull).square().sum(-1)

        return self._by_rows(variance, v) - (-2 * self.visible_std().log()).exp().sum()
