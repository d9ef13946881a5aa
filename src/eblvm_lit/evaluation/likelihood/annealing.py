"""The annealing of chains between a normal distribution and a model, and the importance weights of the chains."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from eblvm_lit.samplers.energy_grad import unrounded
from eblvm_lit.samplers.hmc import HMC, RowEnergy

__all__ = ["NormalBase", "anneal", "step_sizes"]

# The smallest standard deviation of a fitted base distribution, relative to its largest one. A lower bound is needed,
# because the model may be wide in a direction in which the data are constant: between a base of width 1e-3 and a model
# of width 1, equally spaced temperatures are too coarse.
NARROWEST = 0.1


class NormalBase(NamedTuple):
    r"""The normal distribution at which annealing starts, with mean m and covariance S S'.

    Chains move in the whitened variable z with :math:`x = m + S z`, which is N(0, I) under this base.

    Attributes:
        mean: The mean m, shape (D,).
        root: The Cholesky factor S of the covariance, lower triangular, shape (D, D).
    """

    mean: Tensor
    root: Tensor

    @classmethod
    def fitted(cls, v: Tensor) -> NormalBase:
        """Fit the distribution to examples v (n, D), and raise standard deviations that are too small.

        The standard deviation along each principal axis becomes at least a tenth of the largest standard deviation.

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
        """Return the distribution N(0, I) in ``dim`` dimensions, with the dtype and device of ``like``."""
        return cls(like.new_zeros(dim), torch.eye(dim, dtype=like.dtype, device=like.device))

    def join(self, other: NormalBase) -> NormalBase:
        """Return the joint distribution of independent x and y, where x has this distribution and y has ``other``."""
        return NormalBase(torch.cat([self.mean, other.mean]), torch.block_diag(self.root, other.root))

    def colour(self, z: Tensor) -> Tensor:
        """Map whitened variables z to variables x, both of shape (n, D)."""
        return self.mean + z @ self.root.T

    def whiten(self, x: Tensor) -> Tensor:
        """Map variables x to whitened variables z, both of shape (n, D)."""
        return torch.linalg.solve_triangular(self.root, (x - self.mean).T, upper=False).T

    def log_partition(self) -> float:
        r"""Return the log partition function of this distribution: :math:`\tfrac D2 \log 2\pi + \log \det S`.

        It is the logarithm of the integral of :math:`e^{-|z|^2 / 2}` over x.
        """
        return 0.5 * len(self.mean) * math.log(2 * math.pi) + float(self.root.diagonal().double().log().sum())


def _tempered(target: RowEnergy, beta: float) -> RowEnergy:
    return lambda z: (1 - beta) * 0.5 * z.square().sum(-1) + beta * target(z)


def step_sizes(
    target: RowEnergy, hmc: HMC, betas: Sequence[float], z: Tensor, generator: torch.Generator
) -> list[float]:
    """Find a step size of Hamiltonian Monte Carlo for each inverse temperature by adapting it on separate chains.

    Args:
        target: The model's energy U of the whitened variable, which maps z (n, D) to (n,).
        hmc: The Hamiltonian move.
        betas: Inverse temperatures, increasing from 0 to 1.
        z: Samples of N(0, I), shape (n, D), at which the chains start.
        generator: Source of the moves' noise.

    Returns:
        The step sizes, one for each inverse temperature.
    """
    size = hmc.step_size
    found = []
    for beta in betas:
        move = hmc.move(_tempered(target, beta), z, hmc.noise(z, generator), size)
        z = move.x
        # The step size grows if the mean acceptance is above its target, and shrinks if it is below. Adaptation does
        # not leave the distribution invariant, so the states of these chains are not used as samples.
        size *= math.exp(float(move.acceptance.mean()) - hmc.target_acceptance)
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
    r"""Compute the importance weights of chains that move along the geometric path between N(0, I) and a model.

    .. math:: U_\beta(z) = (1 - \beta) \tfrac12 |z|^2 + \beta\, U(z), \qquad
        \log w = \sum_k U_{\beta_{k-1}}(z_k) - U_{\beta_k}(z_k)

    Between two terms of the sum each chain makes a move that leaves :math:`e^{-U_{\beta_k}}` invariant. For chains from
    :math:`\beta = 0` to 1 that start at samples of N(0, I), :math:`E[w] = Z_1 / Z_0`. As the moves are reversible,
    :math:`E[w] = Z_0 / Z_1` for chains from 1 to 0 that start at samples of the model. Reference: Neal 2001, arXiv
    physics/9803008; Grosse et al. 2015, arXiv 1511.02543.

    Args:
        target: The model's energy U of the whitened variable, which maps z (n, D) to (n,).
        hmc: The Hamiltonian move.
        schedule: Pairs of an inverse temperature and its step size, in the order in which the chains visit them.
        z: The chains' starting points, independent samples at the first temperature, shape (n, D).
        generator: Source of the moves' noise.
        on_step: A function that is called with 1 after each temperature, for a progress bar.

    Returns:
        The log weights log w, shape (n,), float64.
    """
    log_w = z.new_zeros(len(z), dtype=torch.float64)
    last = len(schedule) - 1
    for k, (beta, size) in enumerate(schedule[1:], start=1):
        log_w += (beta - schedule[k - 1][0]) * (0.5 * z.square().sum(-1) - unrounded(target, z)).double()
        if k < last:  # no importance weight depends on a move at the last temperature
            z = hmc.move(_tempered(target, beta), z, hmc.noise(z, generator), size).x
        if on_step is not None:
            on_step(1)
    return log_w
