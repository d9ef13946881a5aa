"""A linear model with Gaussian latents, whose marginal, posterior and log Z have closed forms."""

from __future__ import annotations

import math

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor, nn

from eblvm_lit.energies.base import ConditionalEnergy

__all__ = ["GaussianLatentModel"]


class GaussianLatentModel(ConditionalEnergy):
    r"""The energy of Gaussian visible units v and Gaussian latent units h.

    .. math:: E(v, h) = \tfrac12 \|(v - b)/\sigma\|^2 + \tfrac12 \|h - c\|^2 - v^\top W h

    This model tests the bias theorems of VaGES (Bao et al. 2021, appendix F.4). The marginal p(v) is
    :math:`N(\Lambda^{-1}\eta, \Lambda^{-1})` with :math:`\Lambda = \mathrm{diag}(\sigma^{-2}) - W W^\top` and
    :math:`\eta = b/\sigma^2 + W c`; it exists iff the spectral norm of :math:`\mathrm{diag}(\sigma) W` is below 1.

    Args:
        v_dim: The number of visible units d.
        h_dim: The number of latent units m.
        weight_scale: The initial weights are uniform in +- weight_scale / (sqrt(d) + sqrt(m)). With a value below 1
            the initial joint distribution is normalisable.

    Example:
        >>> model = GaussianLatentModel(v_dim=2, h_dim=3)
        >>> model.free_energy(torch.zeros(5, 2)).shape
        torch.Size([5])
    """

    continuous = True

    def __init__(self, *, v_dim: PositiveInt, h_dim: PositiveInt, weight_scale: NonNegativeFloat = 0.5) -> None:
        super().__init__()
        self.event_shape = (v_dim,)
        self.h_dim = h_dim
        bound = weight_scale / (math.sqrt(v_dim) + math.sqrt(h_dim))
        self.W = nn.Parameter(torch.empty(v_dim, h_dim).uniform_(-bound, bound))
        self.b = nn.Parameter(torch.zeros(v_dim))
        self.c = nn.Parameter(torch.zeros(h_dim))
        self.log_std = nn.Parameter(torch.zeros(v_dim))

    def _quadratic(self, v: Tensor) -> Tensor:
        return 0.5 * ((v - self.b) * (-self.log_std).exp()).square().sum(-1)

    def energy(self, v: Tensor, h: Tensor) -> Tensor:
        """Compute E(v, h), shape (*L, B), for v (B, d) and h (*L, B, m)."""
        return self._quadratic(v) + 0.5 * (h - self.c).square().sum(-1) - (h * (v @ self.W)).sum(-1)

    def free_energy(self, v: Tensor) -> Tensor:
        r"""Compute the free energy F(v), shape (B,).

        .. math:: F(v) = \tfrac12\|(v-b)/\sigma\|^2 - c^\top x - \tfrac12\|x\|^2 - \tfrac m2\log 2\pi, x = W^\top v
        """
        x = v @ self.W
        return self._quadratic(v) - x @ self.c - 0.5 * x.square().sum(-1) - 0.5 * self.h_dim * math.log(2 * math.pi)

    def latent_mean(self, v: Tensor) -> Tensor:
        r"""Compute the mean of the posterior p(h|v) = N(c + W'v, I), shape (B, m)."""
        return self.c + v @ self.W

    def visible_mean(self, h: Tensor) -> Tensor:
        r"""Compute the conditional mean E[v|h] = :math:`b + \sigma^2 \odot (W h)`, shape (*L, B, d)."""
        return self.b + (2 * self.log_std).exp() * (h @ self.W.T)

    def visible_std(self) -> Tensor:
        """Compute the standard deviation of p(v|h), shape (d,)."""
        return self.log_std.exp()

    def latent_noise(self, shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
        """Draw standard normal noise for :meth:`draw_latent`, shape (*shape, m)."""
        return torch.randn((*shape, self.h_dim), generator=generator, dtype=like.dtype, device=like.device)

    def draw_latent(self, v: Tensor, noise: Tensor) -> Tensor:
        """Turn standard normal noise (*L, B, m) into latents h ~ p(h|v) of the same shape."""
        return self.latent_mean(v) + noise

    def score(self, v: Tensor) -> Tensor:
        r"""Compute the marginal score :math:`-(v-b)/\sigma^2 + W (c + W^\top v)`, shape (B, d)."""
        return (self.b - v) * (-2 * self.log_std).exp() + self.latent_mean(v) @ self.W.T

    def score_divergence(self, v: Tensor) -> Tensor:
        r"""Compute the trace of the Hessian of log p(v), which is the same for every v, shape (B,).

        .. math:: -\sum_i \sigma_i^{-2} + \|W\|_F^2
        """
        return (self.W.square().sum() - (-2 * self.log_std).exp().sum()).expand(len(v))

    def marginal(self) -> torch.distributions.MultivariateNormal:
        """Return the marginal distribution p(v), which is normal.

        Raises:
            ValueError: If the joint distribution cannot be normalised.
        """
        precision = torch.diag((-2 * self.log_std).exp()) - self.W @ self.W.T
        eta = self.b * (-2 * self.log_std).exp() + self.W @ self.c
        # validate_args is set explicitly because torch.compile disables validation for the rest of the process.
        mean = torch.linalg.solve(precision, eta)
        return torch.distributions.MultivariateNormal(mean, precision_matrix=precision, validate_args=True)

    @torch.no_grad()
    def sample_exact(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw n independent samples from p(v), shape (n, d).

        Args:
            n: The number of samples.
            generator: The source of all randomness, on the energy's device.
        """
        v = self.marginal()
        noise = torch.randn((n, *self.event_shape), generator=generator, dtype=self.b.dtype, device=self.b.device)
        return v.loc + noise @ v.scale_tril.T

    def log_partition(self) -> Tensor:
        """Compute the log partition function log Z as -F(v) - log p(v) at v = 0."""
        origin = self.b.new_zeros(1, *self.event_shape)
        return (-self.free_energy(origin) - self.marginal().log_prob(origin)).squeeze()
