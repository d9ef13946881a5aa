"""The base class of energies whose visible and latent units are all bits, arranged in two coupled groups."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from eblvm_lit.core.tensors import smoothed_mean
from eblvm_lit.energies.base import GibbsEnergy
from eblvm_lit.errors import ConfigError

__all__ = ["BinaryEnergy", "Layers", "bits_of", "flip"]

MAX_ENUMERATED = 24
BLOCK = 2**16  # the number of states enumerated at once


def bits_of(numbers: Tensor, n: int) -> Tensor:
    """Return the n lowest bits of whole numbers, shape (*numbers.shape, n), int64; the lowest bit is the first.

    Example:
        >>> bits_of(torch.tensor([0, 1, 2]), 2).tolist()
        [[0, 0], [1, 0], [0, 1]]
    """
    return numbers.unsqueeze(-1).bitwise_right_shift(torch.arange(n, device=numbers.device)).bitwise_and(1)


def flip(logits: Tensor, generator: torch.Generator) -> Tensor:
    """Draw bits that are 1 with probability sigmoid(logits), with the shape and dtype of the logits."""
    u = torch.empty_like(logits).uniform_(generator=generator)
    return (u < logits.sigmoid()).to(logits.dtype)


class Layers(NamedTuple):
    r"""The energy of two groups of bits x and y, which are coupled only to each other.

    .. math:: E(x, y) = e - a^\top x - n^\top y - x^\top U y

    Attributes:
        a: The biases of x, shape (X,).
        U: The couplings, shape (X, Y).
        n: The biases of y, shape (Y,).
        e: The constant, a scalar.
    """

    a: Tensor
    U: Tensor
    n: Tensor
    e: Tensor

    def free_energy(self, x: Tensor) -> Tensor:
        """Compute -log sum_y exp(-E(x, y)), shape (*L,), for x (*L, X)."""
        return self.e - x @ self.a - softplus(self.n + x @ self.U).sum(-1)

    def swapped(self) -> Layers:
        """Return the same energy with the names x and y exchanged."""
        return Layers(self.n, self.U.T, self.a, self.e)


class BinaryEnergy(GibbsEnergy):
    r"""The base class of energies of binary v and binary h, whose units form two groups x and y.

    Units of the same group are independent given the other group, so that Gibbs sweeps draw one group at a time, and
    log Z is a sum over the states of the smaller group.

    Offsets are subtracted from the units in products, the mean :math:`\alpha` of v and 1/2 of latents, because the
    gradients of the weights are then less correlated with those of the biases. The family of distributions is the same
    as without offsets. Training starts at :math:`\alpha` = the mean of the training examples and b = its logit.
    Reference: Montavon and Mueller 2012, "Deep Boltzmann machines and the centering trick", section 2.

    Args:
        v_dim: The number of visible units d.
        h_dim: The number of latent units m.
    """

    continuous = False
    binary_visible = True
    v_offset: Tensor
    fitted: Tensor

    def __init__(self, *, v_dim: int, h_dim: int) -> None:
        super().__init__()
        self.event_shape = (v_dim,)
        self.h_dim = h_dim
        self.b = torch.nn.Parameter(torch.zeros(v_dim))
        self.register_buffer("v_offset", torch.full((v_dim,), 0.5))
        self.register_buffer("fitted", torch.tensor(False))

    @abstractmethod
    def layers(self) -> Layers:
        """Return the energy as a function of its two groups of units."""

    @abstractmethod
    def coupling(self) -> Tensor:
        """Return the couplings of v to the latents next to it, shape (d, m) or (d, m_1)."""

    @abstractmethod
    def base_biases(self, b: Tensor) -> tuple[Tensor, Tensor]:
        """Return the biases of x and y of the model with visible biases b (d,) and no other parameters."""

    @abstractmethod
    def visible_of(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the visible units v, shape (*L, d), which are a part of the groups x (*L, X) and y (*L, Y)."""

    @torch.no_grad()
    def fit(self, batches: Iterable[Tensor]) -> None:
        """Start at the mean of the training examples, unless this was done before; a run calls this at its start."""
        if self.fitted:
            return
        mean = smoothed_mean(batches)
        self.v_offset.copy_(mean)
        self.b.copy_(mean.logit())
        self.fitted.fill_(True)

    def visible_noise(self, shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
        """Draw uniform noise in [0, 1) for :meth:`draw_visible`, shape (*shape, d)."""
        return torch.rand((*shape, *self.event_shape), generator=generator, dtype=like.dtype, device=like.device)

    def latent_noise(self, shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
        """Draw uniform noise in [0, 1) for latents, shape (*shape, m)."""
        return torch.rand((*shape, self.h_dim), generator=generator, dtype=like.dtype, device=like.device)

    def draw_visible(self, h: Tensor, noise: Tensor) -> Tensor:
        """Turn uniform noise (*L, B, d) into bits v ~ p(v|h) of the same shape, for h (*L, B, m)."""
        return (noise < self.visible_mean(h)).to(noise.dtype)

    @property
    def n_enumerated(self) -> int:
        """Return the number of units in the smaller group; log Z is a sum over their states."""
        return min(self._smaller().U.shape)

    def _smaller(self) -> Layers:
        """Return the two groups with the smaller one as x."""
        layers = self.layers()
        return layers if len(layers.a) <= len(layers.n) else layers.swapped()

    def _log_weights(self) -> Tensor:
        """Compute the logarithm of the sum of exp(-E) over y for each state x of the smaller group, float64 (2^X,)."""
        if self.n_enumerated > MAX_ENUMERATED:
            raise ConfigError(
                f"{self.n_enumerated} binary units cannot be enumerated (at most {MAX_ENUMERATED}): "
                "estimate log Z by annealed importance sampling."
            )
        layers = self._smaller()
        states = torch.arange(2 ** len(layers.a), device=layers.a.device).split(BLOCK)
        found = [-layers.free_energy(bits_of(part, len(layers.a)).to(layers.a)) for part in states]
        return torch.cat(found).double()

    def log_partition(self) -> Tensor:
        """Compute log Z by enumeration of the states of the smaller group.

        Raises:
            ConfigError: With more than 24 units in the smaller group; use annealed importance sampling there.
        """
        return self._log_weights().logsumexp(0).to(self.b.dtype)

    @torch.no_grad()
    def sample_layers(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw n independent samples of x and y, shapes (n, X) and (n, Y), by enumeration of the smaller group.

        Raises:
            ConfigError: With more than 24 units in the smaller group.
        """
        below = self._log_weights().softmax(0).cumsum(0)
        u = torch.rand(n, generator=generator, dtype=torch.float64, device=below.device) * below[-1]
        numbers = torch.searchsorted(below, u, right=True).clamp(max=len(below) - 1)
        layers = self._smaller()
        x = bits_of(numbers, len(layers.a)).to(layers.a)
        y = flip(layers.n + x @ layers.U, generator)
        return (x, y) if len(layers.a) == len(self.layers().a) else (y, x)

    def sample_exact(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw n independent samples from p(v), shape (n, d); see :meth:`sample_layers`."""
        return self.visible_of(*self.sample_layers(n, generator))
