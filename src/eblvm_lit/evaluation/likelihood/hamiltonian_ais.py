"""Annealed importance sampling, with Hamiltonian moves, of any model with real variables."""

from __future__ import annotations

from typing import Any, Literal, cast

import torch
from pydantic import PositiveInt
from torch import Tensor

from eblvm_lit.core.ranges import AtLeastTwo
from eblvm_lit.energies.base import Energy, MarginalEnergy, is_movable
from eblvm_lit.evaluation.likelihood.ais import KEY, AISEstimate, Sandwich, estimate_from_log_weights, reversed_estimate
from eblvm_lit.evaluation.likelihood.annealing import NormalBase, anneal, step_sizes
from eblvm_lit.samplers.hmc import HMC, RowEnergy
from eblvm_lit.utils.progress import progress_bar

__all__ = ["HamiltonianAIS"]


class HamiltonianAIS:
    r"""Annealed importance sampling from a normal distribution to a model, with Hamiltonian Monte Carlo moves.

    .. math:: U_\beta(x) = (1 - \beta)\, \tfrac12 |S^{-1}(x - m)|^2 + \beta\, E(x), \qquad
        \hat Z = Z_0\, \frac1n \sum_i w_i, \quad E[\hat Z] = Z

    If the free energy is tractable, x is v, and E is F(v). Otherwise x is (v, h), with real h. The moves, each with a
    Metropolis step, are those of :class:`~eblvm_lit.samplers.hmc.HMC` in the whitened variable :math:`S^{-1}(x - m)`.
    Separate chains adapt the step sizes before weights are recorded; then step sizes stay fixed. By Jensen's inequality
    :math:`E[\log \hat Z] \le \log Z`. Use it for low-dimensional v: each chain needs several gradients of the energy at
    each temperature. Reference: Neal 2001, arXiv physics/9803008; Grosse et al. 2015, arXiv 1511.02543.

    A deep energy that depends on v only through fewer features than v has dimensions may be constant along a line to
    infinity, so that exp(-E) has no finite integral. The estimate is then a finite number without meaning, and there is
    not always a warning.

    Args:
        n_chains: Number of independent chains.
        n_betas: Number of equally spaced inverse temperatures, including 0 and 1.
        hmc: The Hamiltonian move; None for three leapfrog steps.
        base: The base distribution of v: ``fitted``, with the mean and covariance of the examples, or ``standard``,
            N(0, I). The base distribution of h is always N(0, I).
        n_adapting: Number of chains that adapt the step sizes.

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
        n_chains: AtLeastTwo = 1000,
        n_betas: AtLeastTwo = 500,
        hmc: HMC | None = None,
        base: Literal["fitted", "standard"] = "fitted",
        n_adapting: PositiveInt = 100,
    ) -> None:
        self.n_chains = n_chains
        self.n_betas = n_betas
        self.n_adapting = n_adapting
        self.hmc = HMC() if hmc is None else hmc
        self.base = base

    @staticmethod
    def supports(energy: object) -> bool:
        """Return whether all variables of the energy are real.

        Latents that are summed out in closed form do not count, and may be binary.
        """
        return is_movable(energy)

    def estimate(self, energy: Energy, v: Tensor, generator: torch.Generator) -> AISEstimate:
        """Estimate log Z of a model.

        Args:
            energy: The model. Chains run in its floating-point type and on its device; log weights are float64.
            v: Examples, shape (n, *event), to which the base is fitted.
            generator: Source of all randomness, on the energy's device.
        """
        target, base = self._target(energy, v)
        log_w, _ = self._ascend(target, len(base.mean), v, generator, n=self.n_chains)
        return estimate_from_log_weights(log_w, base.log_partition(), advice=f"Raise {KEY}.hamiltonian_ais.n_betas.")

    @torch.no_grad()
    def sandwich(self, energy: Energy, v: Tensor, generator: torch.Generator) -> Sandwich:
        """Estimate log Z from below and from above, with forward and reversed chains.

        Forward chains go from the base distribution to the model. Reversed chains go from exact samples of the model to
        the base distribution. The arguments are the same as in :meth:`estimate`.
        """
        target, base = self._target(energy, v)
        up, schedule = self._ascend(target, len(base.mean), v, generator, n=self.n_chains)
        samples = cast(Any, energy).sample_exact(self.n_chains, generator)
        down = anneal(target, self.hmc, schedule[::-1], base.whiten(samples.flatten(1)), generator)
        log_z_base = base.log_partition()
        return Sandwich(estimate_from_log_weights(up, log_z_base), reversed_estimate(down, log_z_base))

    def free_energy(self, energy: Energy, v: Tensor, generator: torch.Generator) -> Tensor:
        """Estimate the free energy F(v) of each example with one chain of latents h, annealed from N(0, I) to p(h|v).

        Args:
            energy: A model with real latents.
            v: Examples, shape (B, *event).
            generator: Source of all randomness, on the energy's device.

        Returns:
            The estimates of F, shape (B,), float64. exp(-F) is estimated without bias, so that the expectation of an
            estimate of F is at least F.
        """
        pilot = energy.at(v[: self.n_adapting])
        log_w, _ = self._ascend(energy.at(v), energy.h_dim, v, generator, n=len(v), pilot=pilot)
        return -log_w - NormalBase.standard(energy.h_dim, v).log_partition()

    def _target(self, energy: Energy, v: Tensor) -> tuple[RowEnergy, NormalBase]:
        """Return the energy as a function of whitened variables z, and the base distribution that whitens them."""
        rows = v.flatten(1)
        n = v[0].numel()
        base = NormalBase.fitted(rows) if self.base == "fitted" else NormalBase.standard(n, rows)
        if isinstance(energy, MarginalEnergy):
            return lambda z: energy.free_energy(base.colour(z).view(-1, *energy.event_shape)), base
        both = base.join(NormalBase.standard(energy.h_dim, rows))

        def joint(z: Tensor) -> Tensor:
            x = both.colour(z)
            return energy.energy(x[:, :n].view(-1, *energy.event_shape), x[:, n:])

        return joint, both

    def _ascend(
        self,
        target: RowEnergy,
        dim: int,
        like: Tensor,
        generator: torch.Generator,
        *,
        n: int,
        pilot: RowEnergy | None = None,
    ) -> tuple[Tensor, list[tuple[float, float]]]:
        """Run n chains from N(0, I) to the target; return log importance weights and the step size at each temperature.

        The chains that adapt the step sizes use the energy ``pilot``, which may have fewer chains than the target, or
        the target if ``pilot`` is None.
        """
        n_adapting = self.n_adapting if pilot is None else min(n, self.n_adapting)
        options: dict[str, Any] = {"generator": generator, "dtype": like.dtype, "device": like.device}
        betas = torch.linspace(0, 1, self.n_betas, dtype=torch.float64).tolist()
        sizes = step_sizes(pilot or target, self.hmc, betas, torch.randn((n_adapting, dim), **options), generator)
        schedule = list(zip(betas, sizes, strict=True))
        with progress_bar("annealed importance sampling", self.n_betas - 1) as on_step:
            return anneal(target, self.hmc, schedule, torch.randn((n, dim), **options), generator, on_step), schedule
