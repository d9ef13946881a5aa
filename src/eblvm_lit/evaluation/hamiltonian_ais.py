"""Annealed importance sampling of any model with real variables, by Hamiltonian moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from eblvm_lit.energies.base import Energy, MarginalEnergy
from eblvm_lit.evaluation.ais import AISEstimate, Sandwich, estimate_from_log_weights, reversed_estimate
from eblvm_lit.evaluation.annealing import NormalBase, anneal, step_sizes
from eblvm_lit.samplers.hmc import HMC
from eblvm_lit.utils.progress import progress_bar

__all__ = ["HamiltonianAIS"]

RowEnergy = Callable[[Tensor], Tensor]


class HamiltonianAIS:
    r"""Annealed importance sampling from a normal distribution to a model, by moves with a Metropolis step.

    .. math:: U_\beta(x) = (1 - \beta)\, \tfrac12 |S^{-1}(x - m)|^2 + \beta\, E(x), \qquad
        \hat Z = Z_0\, \frac1n \sum_i w_i, \quad E[\hat Z] = Z

    x is v where the free energy is tractable, then with F for E; else (v, h) together, h real. The moves are those of
    :class:`~eblvm_lit.samplers.hmc.HMC` in the whitened variable :math:`S^{-1}(x - m)`. Their step sizes are adapted by
    other chains beforehand and stay as they are in the recorded run. By Jensen's inequality
    :math:`E[\log \hat Z] \le \log Z`. For v of few dimensions: each temperature costs some gradients of the energy for
    every chain. Reference: Neal 2001, arXiv physics/9803008; Grosse et al. 2015, arXiv 1511.02543.

    Args:
        n_chains: Number of independent chains.
        n_betas: Number of equally spaced inverse temperatures, 0 and 1 among them.
        hmc: The move; None: three leapfrog steps.
        base: Of v: ``fitted``, the mean and covariance of the examples, or ``standard``, N(0, I); of h it is N(0, I).
        n_adapting: Chains that adapt the step sizes.
        progress: Whether a terminal shows a progress bar.

    Example:
        >>> from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
        >>> model, g = GaussianLatentModel(v_dim=2, h_dim=3), torch.Generator()
        >>> ais = HamiltonianAIS(n_chains=200, n_betas=20)
        >>> estimate = ais.estimate(model, torch.randn(100, 2, generator=g), g)
        >>> abs(estimate.log_z - model.log_partition().item()) < 5 * estimate.standard_error
        True
    """

    def __init__(
        self,
        *,
        n_chains: int = 1000,
        n_betas: int = 500,
        hmc: HMC | None = None,
        base: Literal["fitted", "standard"] = "fitted",
        n_adapting: int = 100,
        progress: bool = False,
    ) -> None:
        self.n_chains, self.n_betas, self.n_adapting, self.progress = n_chains, n_betas, n_adapting, progress
        self.hmc, self.base = HMC() if hmc is None else hmc, base

    @staticmethod
    def supports(energy: object) -> bool:
        """Whether all variables that are left when latents are summed out are real."""
        return isinstance(energy, MarginalEnergy) or (isinstance(energy, Energy) and energy.continuous)

    def estimate(self, energy: Energy, v: Tensor, generator: torch.Generator) -> AISEstimate:
        """Estimate log Z of a model.

        Args:
            energy: The model; chains run in its type and on its device, weights are summed in float64.
            v: Examples, shape (n, *event), which the base is fitted to.
            generator: Source of all randomness, on the energy's device.
        """
        target, base = self._target(energy, v)
        schedule = self._schedule(target, len(base.mean), v, generator)
        start = self._draw(self.n_chains, len(base.mean), v, generator)
        return estimate_from_log_weights(self._anneal(target, schedule, start, generator), base.log_partition())

    @torch.no_grad()
    def sandwich(self, energy: Energy, v: Tensor, generator: torch.Generator) -> Sandwich | None:
        """Bounds of log Z from both sides: from the base to the model, and from exact samples of the model to the base.

        Arguments as for :meth:`estimate`.

        Returns:
            None for a model without exact samples.
        """
        if not hasattr(energy, "sample_exact"):
            return None
        target, base = self._target(energy, v)
        schedule = self._schedule(target, len(base.mean), v, generator)
        start = self._draw(self.n_chains, len(base.mean), v, generator)
        up = self._anneal(target, schedule, start, generator)
        samples = energy.sample_exact(self.n_chains, generator)  # pyright: ignore[reportCallIssue]
        down = self._anneal(target, schedule[::-1], base.whiten(samples.flatten(1)), generator)
        log_z_base = base.log_partition()
        return Sandwich(estimate_from_log_weights(up, log_z_base), reversed_estimate(down, log_z_base))

    def free_energy(self, energy: Energy, v: Tensor, generator: torch.Generator) -> Tensor:
        """An estimate of F at each v by one chain of h, from N(0, I) to p(h|v), whose exp(-F) is unbiased.

        Args:
            energy: A model of real latents.
            v: Points, shape (B, *event).
            generator: Source of all randomness, on the energy's device.

        Returns:
            Shape (B,), float64; its mean is at least that of F.
        """
        base, n = NormalBase.standard(energy.h_dim, v), min(len(v), self.n_adapting)
        schedule = self._schedule(energy.at(v[:n]), energy.h_dim, v, generator, n)
        start = self._draw(len(v), energy.h_dim, v, generator)
        return -self._anneal(energy.at(v), schedule, start, generator, "F(v) by AIS") - base.log_partition()

    def _target(self, energy: Energy, v: Tensor) -> tuple[RowEnergy, NormalBase]:
        """The energy of the whitened variable, and the base."""
        rows, n = v.flatten(1), v[0].numel()
        base = NormalBase.fitted(rows) if self.base == "fitted" else NormalBase.standard(n, rows)
        if isinstance(energy, MarginalEnergy):
            return lambda z: energy.free_energy(base.colour(z).view(-1, *energy.event_shape)), base
        both = base.join(NormalBase.standard(energy.h_dim, rows))

        def joint(z: Tensor) -> Tensor:
            x = both.colour(z)
            return energy.energy(x[:, :n].view(-1, *energy.event_shape), x[:, n:])

        return joint, both

    def _schedule(
        self, target: RowEnergy, dim: int, like: Tensor, generator: torch.Generator, n: int | None = None
    ) -> list[tuple[float, float]]:
        """Inverse temperatures and step sizes, by n chains that adapt the latter."""
        betas = torch.linspace(0, 1, self.n_betas, dtype=torch.float64).tolist()
        pilot = self._draw(self.n_adapting if n is None else n, dim, like, generator)
        return list(zip(betas, step_sizes(target, self.hmc, betas, pilot, generator), strict=True))

    def _draw(self, n: int, dim: int, like: Tensor, generator: torch.Generator) -> Tensor:
        return torch.randn((n, dim), generator=generator, dtype=like.dtype, device=like.device)

    def _anneal(
        self,
        target: RowEnergy,
        schedule: list[tuple[float, float]],
        start: Tensor,
        generator: torch.Generator,
        title: str = "log Z by AIS",
    ) -> Tensor:
        with progress_bar(title, self.n_betas - 1, visible=self.progress) as on_step:
            return anneal(target, self.hmc, schedule, start, generator, on_step)
