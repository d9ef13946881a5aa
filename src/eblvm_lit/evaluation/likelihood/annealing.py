"""Annealing of chains between a normal distribution and a model, and the importance weights that it gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from eblvm_lit.errors import ConfigError
from eblvm_lit.samplers.energy_grad import unrounded
from eblvm_lit.samplers.hmc import HMC

__all__ = ["NormalBase", "anneal", "step_sizes"]

# The least standard deviation of a fitted base, relative to its largest. Data may be constant in some directions, and
# the model need not be: equally spaced temperatures do not lead from a base of width 1e-3 to a model of width 1.
NARROWEST = 0.1

RowEnergy = Callable[[Tensor], Tensor]


class NormalBase(NamedTuple):
    r"""The base N(mean, S S'), where annealing starts; chains run in its whitened variable :math:`x = m + S z`.

    Attributes:
        mean: m, shape (D,).
        root: S, lower triangular, shape (D, D).
    """

    mean: Tensor
    root: Tensor

    @classmethod
    def fitted(cls, v: Tensor) -> NormalBase:
        """The mean and covariance of examples v (n, D), where no direction is narrower than a tenth of the widest.

        Example:
            >>> base = NormalBase.fitted(torch.tensor([[0.0], [2.0]]))
            >>> base.mean, base.root
            (tensor([1.]), tensor([[1.4142]]))
        """
        values, vectors = torch.linalg.eigh(torch.cov(v.T.double()).view(v.shape[1], v.shape[1]))
        covariance = (vectors * values.clamp(min=float(NARROWEST**2 * values[-1]))) @ vectors.T
        return cls(v.mean(0), torch.linalg.cholesky(covariance).to(v))

    @classmethod
    def standard(cls, dim: int, like: Tensor) -> NormalBase:
        """N(0, I), of like's type and device."""
        return cls(like.new_zeros(dim), torch.eye(dim, dtype=like.dtype, device=like.device))

    def join(self, other: NormalBase) -> NormalBase:
        """Two independent variables, one after the other."""
        return NormalBase(torch.cat([self.mean, other.mean]), torch.block_diag(self.root, other.root))

    def colour(self, z: Tensor) -> Tensor:
        """x, shape (n, D), of z."""
        return self.mean + z @ self.root.T

    def whiten(self, x: Tensor) -> Tensor:
        """z, shape (n, D), of x."""
        return torch.linalg.solve_triangular(self.root, (x - self.mean).T, upper=False).T

    def log_partition(self) -> float:
        r"""log Z of :math:`e^{-|z|^2 / 2}` as a function of x: :math:`\tfrac D2 \log 2\pi + \log \det S`."""
        return 0.5 * len(self.mean) * math.log(2 * math.pi) + float(self.root.diagonal().double().log().sum())


def _tempered(target: RowEnergy, beta: float) -> RowEnergy:
    return lambda z: (1 - beta) * 0.5 * z.square().sum(-1) + beta * target(z)


def step_sizes(
    target: RowEnergy, hmc: HMC, betas: Sequence[float], z: Tensor, generator: torch.Generator
) -> list[float]:
    """A step size for each inverse temperature, by chains that adapt them on the way and are then thrown away.

    Args:
        target: U, which maps z (n, D) to (n,).
        hmc: The move.
        betas: Inverse temperatures, from 0 to 1.
        z: Draws of N(0, I), shape (n, D).
        generator: Source of the moves' noise.

    Returns:
        As many as there are betas.
    """
    size = hmc.step_size
    found = []
    for beta in betas:
        move = hmc.move(_tempered(target, beta), z, hmc.noise(z, generator), size)
        z = move.x
        acceptance = move.acceptance
        size = hmc.adapt(size, acceptance)
        found.append(size)
    return found


@torch.no_grad()
def anneal(
    target: RowEnergy,
    hmc: HMC,
    schedule: Sequence[tuple[float, float]],
    z: Tensor,
    generator: torch.Generator,
    on_step: Callable[[int], None] | None = None,
) -> Tensor:
    r"""Importance weights of chains that move along the geometric path between N(0, I) and a model.

    .. math:: U_\beta(z) = (1 - \beta) \tfrac12 |z|^2 + \beta\, U(z), \qquad
        \log w = \sum_k U_{\beta_{k-1}}(z_k) - U_{\beta_k}(z_k)

    Between two terms a move leaves :math:`e^{-U_{\beta_k}}` invariant. From :math:`\beta = 0` to 1 and draws of
    N(0, I), :math:`E[w] = Z_1 / Z_0`. The moves are reversible: from 1 to 0 and draws of the model, it is
    :math:`Z_0 / Z_1`. Reference: Neal 2001, arXiv physics/9803008; Grosse et al. 2015, arXiv 1511.02543.

    Args:
        target: U, which maps z (n, D) to (n,).
        hmc: The move.
        schedule: Pairs of an inverse temperature and the step size there, in the order in which they are passed.
        z: Where the chains start, shape (n, D): independent draws at the first temperature.
        generator: Source of the moves' noise.
        on_step: Called with 1 after each temperature.

    Returns:
        log w, shape (n,), float64.

    Raises:
        ConfigError: If a chain diverges.
    """
    log_w = z.new_zeros(len(z), dtype=torch.float64)
    last = len(schedule) - 1
    for k, (beta, size) in enumerate(schedule[1:], start=1):
        log_w += (beta - schedule[k - 1][0]) * (0.5 * z.square().sum(-1) - unrounded(target, z)).double()
        if k < last:  # a move at the last temperature would not change the weights
            z = hmc.move(_tempered(target, beta), z, hmc.noise(z, generator), size).x
        if on_step is not None:
            on_step(1)
    if not log_w.isfinite().all():
        raise ConfigError("A chain of annealed importance sampling diverges: the model's energy is not finite there.")
    return log_w
