"""The Gaussian-Bernoulli restricted Boltzmann machine (GRBM), and the base class that it shares with CoupledGRBM."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn.functional import softplus

from eblvm_lit.energies.base import ConditionalEnergy
from eblvm_lit.energies.binary_layers import MAX_ENUMERATED, bits_of
from eblvm_lit.errors import ConfigError

__all__ = ["GRBM", "GaussianBernoulliEnergy"]

BLOCK = 2**16  # the number of latent states enumerated at once


class GaussianBernoulliEnergy(ConditionalEnergy):
    r"""The base class of energies of Gaussian visible units v and binary latents h that may be dependent given v.

    .. math:: E(v, h) = \tfrac12 \|(v - b) / \sigma\|^2 - v^\top U h - g(h)

    A subclass defines g, the free energy (the sum over h) and the draws from p(h|v). The constructor's arguments are
    those of :class:`GRBM`.
    """

    continuous = False

    def __init__(
        self,
        *,
        v_dim: PositiveInt,
        h_dim: PositiveInt,
        parametrisation: Literal["code", "paper"] = "code",
        learn_std: bool = True,
    ) -> None:
        super().__init__()
        self.event_shape = (v_dim,)
        self.h_dim = h_dim
        self.parametrisation = parametrisation
        # The authors' code draws W, b and c by PyTorch's Kaiming-uniform rule for a d x m matrix, whose fan-in is m.
        bound = 1 / math.sqrt(h_dim)
        self.W = nn.Parameter(torch.empty(v_dim, h_dim).uniform_(-bound, bound))
        self.b = nn.Parameter(torch.empty(v_dim).uniform_(-bound, bound))
        self.c = nn.Parameter(torch.empty(h_dim).uniform_(-bound, bound))
        log_std = torch.zeros(v_dim if parametrisation == "code" else 1)
        self.log_std = nn.Parameter(log_std, requires_grad=learn_std)

    @abstractmethod
    def _of_latents(self, h: Tensor) -> Tensor:
        """Compute g(h), the term of -E that depends only on h, shape (*L,), for h (*L, m)."""

    def coupling(self) -> Tensor:
        """Return the coupling matrix U of the energy's term v'Uh, shape (d, m)."""
        return self.W if self.parametrisation == "code" else self.W * (-self.log_std).exp().unsqueeze(-1)

    def _quadratic(self, v: Tensor) -> Tensor:
        return 0.5 * ((v - self.b) * (-self.log_std).exp()).square().sum(-1)

    def visible_mean(self, h: Tensor) -> Tensor:
        r"""Compute the conditional mean E[v|h] = :math:`b + \sigma^2 \odot (U h)`, shape (*L, B, d)."""
        return self.b + (2 * self.log_std).exp() * (h @ self.coupling().T)

    def visible_std(self) -> Tensor:
        """Compute the standard deviation of p(v|h), shape (d,)."""
        return self.log_std.exp().expand(self.event_shape)

    def latent_noise(self, shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
        """Draw uniform noise in [0, 1) for :meth:`draw_latent`, shape (*shape, m)."""
        return torch.rand((*shape, self.h_dim), generator=generator, dtype=like.dtype, device=like.device)

    def score(self, v: Tensor) -> Tensor:
        r"""Compute the marginal score :math:`-(v-b)/\sigma^2 + U\,E[h|v]`, shape (B, d)."""
        return (self.b - v) * (-2 * self.log_std).exp() + self.latent_mean(v) @ self.coupling().T

    def log_partition(self) -> Tensor:
        r"""Compute log Z by enumeration of all latent states.

        .. math:: \log \sum_h \exp(g(h) + b^\top U h + \tfrac12 \|\sigma \odot U h\|^2)
            + \tfrac d2 \log 2\pi + \sum_i \log \sigma_i

        Raises:
            ConfigError: With more than 24 latent units; use annealed importance sampling there.
        """
        self._check_enumerable()
        std = self.visible_std()
        total = self.W.new_tensor(-math.inf)
        for start in range(0, 2**self.h_dim, BLOCK):  # in blocks, to limit memory for up to 2^24 states
            total = torch.logaddexp(total, self._log_weights_of_states(start).logsumexp(0))
        return total + 0.5 * std.numel() * math.log(2 * math.pi) + std.log().sum()

    def _log_weights_of_states(self, start: int) -> Tensor:
        r"""Compute log p(h) up to a constant for the latent states numbered ``start`` to ``start + BLOCK - 1``.

        It is :math:`g(h) + b^\top U h + \tfrac12 \|\sigma \odot U h\|^2`.
        """
        h = self._states(start, min(start + BLOCK, 2**self.h_dim))
        pull = h @ self.coupling().T
        return self._of_latents(h) + pull @ self.b + 0.5 * (self.visible_std() * pull).square().sum(-1)

    @torch.no_grad()
    def sample_exact(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw n independent samples from p(v), shape (n, d), by drawing h ~ p(h) and then v ~ p(v|h).

        All latent states are enumerated to draw h.

        Args:
            n: The number of samples.
            generator: The source of all randomness, on the energy's device.

        Raises:
            ConfigError: With more than 24 latent units.
        """
        self._check_enumerable()
        logits = torch.cat([self._log_weights_of_states(i) for i in range(0, 2**self.h_dim, BLOCK)]).double()
        below = logits.softmax(0).cumsum(0)
        u = torch.rand(n, generator=generator, dtype=torch.float64, device=below.device) * below[-1]
        states = torch.searchsorted(below, u, right=True).clamp(max=len(below) - 1)
        return self.sample_visible(self._bits(states), generator)

    def _states(self, start: int, stop: int) -> Tensor:
        """Return the latent states numbered ``start`` to ``stop - 1``; bit j of a state's number is h_j."""
        return self._bits(torch.arange(start, stop, device=self.W.device))

    def _bits(self, numbers: Tensor) -> Tensor:
        return bits_of(numbers, self.h_dim).to(self.W.dtype)

    def _check_enumerable(self) -> None:
        if self.h_dim > MAX_ENUMERATED:
            raise ConfigError(
                f"{self.h_dim} binary latents cannot be enumerated (at most {MAX_ENUMERATED}): "
                "estimate log Z by annealed importance sampling."
            )


class GRBM(GaussianBernoulliEnergy):
    r"""The energy of Gaussian visible units v and binary latent units h that are independent given v.

    .. math:: E(v, h) = \tfrac12 \|(v - b) / \sigma\|^2 - c^\top h - v^\top U h

    with :math:`U = W` and one :math:`\sigma_i` per dimension (``code``, as in the authors' code), or
    :math:`U = W / \sigma` and one scalar :math:`\sigma` (``paper``). Reference: Bao et al. 2020, section 5.1.

    Args:
        v_dim: The number of visible units d.
        h_dim: The number of latent units m.
        parametrisation: The meaning of W and sigma, ``code`` or ``paper``, as above.
        learn_std: Whether log sigma is trained; it starts at 0.

    Example:
        >>> import torch
        >>> grbm = GRBM(v_dim=2, h_dim=3)
        >>> grbm.energy(torch.zeros(5, 2), torch.zeros(7, 5, 3)).shape
        torch.Size([7, 5])
    """

    @property
    def n_enumerated(self) -> int:
        """Return the number of latents; log Z is a sum over their states."""
        return self.h_dim

    def energy(self, v: Tensor, h: Tensor) -> Tensor:
        """Compute E(v, h), shape (*L, B), for v (B, d) and h (*L, B, m)."""
        return self._quadratic(v) - (h * self.latent_logits(v)).sum(-1)

    def _of_latents(self, h: Tensor) -> Tensor:
        return h @ self.c

    def free_energy(self, v: Tensor) -> Tensor:
        r"""Compute the free energy F(v), shape (B,).

        .. math:: F(v) = \tfrac12\|(v-b)/\sigma\|^2 - \sum_j \log(1 + e^{c_j + (U^\top v)_j})
        """
        return self._quadratic(v) - softplus(self.latent_logits(v)).sum(-1)

    def latent_logits(self, v: Tensor) -> Tensor:
        r"""Compute the logits of p(h=1|v), :math:`c + U^\top v`, shape (B, m)."""
        return self.c + v @ self.coupling()

    def latent_mean(self, v: Tensor) -> Tensor:
        """Compute the posterior mean E[h|v], shape (B, m)."""
        return self.latent_logits(v).sigmoid()

    def draw_latent(self, v: Tensor, noise: Tensor) -> Tensor:
        """Turn uniform noise (*L, B, m) into bits h ~ p(h|v) of the same shape."""
        return (noise < self.latent_mean(v)).to(noise.dtype)

    def score_divergence(self, v: Tensor) -> Tensor:
        r"""Compute the trace of the Hessian of log p(v), shape (B,).

        .. math:: -\sum_i \sigma_i^{-2} + \sum_j s_j (1 - s_j) \|U_{:j}\|^2, \quad s = E[h|v]
        """
        mean = self.latent_mean(v)
        precision = (-2 * self.visible_std().log()).exp().sum()
        return (mean * (1 - mean)) @ self.coupling().square().sum(0) - precision
