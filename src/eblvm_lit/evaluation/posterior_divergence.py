"""The KL and the Fisher divergence of a variational posterior from the true posterior."""

from __future__ import annotations

import torch
from pydantic import PositiveInt
from torch import Tensor

from eblvm_lit.core.tensors import in_float64
from eblvm_lit.divergences.fisher import Fisher
from eblvm_lit.energies.base import Energy, MarginalEnergy
from eblvm_lit.evaluation.base import ExampleMetric, mean_over_rows
from eblvm_lit.evaluation.latent_distributions import posterior_divergences
from eblvm_lit.methods.base import Method
from eblvm_lit.posteriors.base import Posterior
from eblvm_lit.utils.quantities import Quantity

__all__ = ["PosteriorDivergence"]

ROWS = 100


class PosteriorDivergence(
    ExampleMetric,
    emits={
        "posterior_kl": Quantity(-1, "nats", "KL(q(h|v) || p(h|v)); 0 where the posterior is exact"),
        "posterior_fisher": Quantity(
            -1, "", "the Fisher divergence of q(h|v) from p(h|v); 0 where the posterior is exact"
        ),
    },
):
    r"""The KL and the Fisher divergence of q(h|v) from p(h|v), averaged over the examples v.

    .. math:: \mathrm{KL} = E_q [\log q(h|v) + E(v, h)] - F(v), \quad
        D_F = \tfrac12 E_q \| \nabla_h \log q(h|v) + \nabla_h E(v, h) \|^2

    ``posterior_kl`` is computed if the free energy is tractable, ``posterior_fisher`` if the latents are continuous.
    The values are exact if both distributions are Bernoulli, or both Gaussian, or p(h|v) can be enumerated; otherwise
    they are Monte Carlo estimates. For binary latents they are the divergences of q itself, not of its relaxation.
    Energies without latents have neither number. Reference: Bao et al. 2020, Eqs. 10, 11, Fig. 5.

    Args:
        n_particles: Number of latents drawn per example for a Monte Carlo estimate.

    Example:
        >>> from types import SimpleNamespace
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.methods.parts import MethodParts
        >>> from eblvm_lit.posteriors.bernoulli import BernoulliPosterior
        >>> parts = MethodParts(energy=GRBM(v_dim=2, h_dim=3), posterior=BernoulliPosterior(v_dim=2, h_dim=3))
        >>> method = SimpleNamespace(parts=parts)
        >>> list(PosteriorDivergence().compute(method, torch.zeros(5, 2), torch.Generator()))
        ['posterior_kl']
    """

    needs = "methods with a posterior: KL with a tractable F(v), Fisher with real latents"

    def __init__(self, *, n_particles: PositiveInt = 10) -> None:
        self.n_particles = n_particles

    @torch.no_grad()
    def compute(self, method: Method, v: Tensor, generator: torch.Generator) -> dict[str, float]:
        """Compute the mean divergences over the examples v; see :meth:`ExampleMetric.compute`."""
        energy = method.parts.energy
        posterior = method.parts.posterior
        if not isinstance(energy, Energy) or not isinstance(posterior, Posterior) or energy.h_dim == 0:
            return {}
        if posterior_divergences(energy, posterior, v[:1]) is None:
            return mean_over_rows(lambda x: self._estimate(energy, posterior, x, generator), v, ROWS)
        energy = in_float64(energy)
        posterior = in_float64(posterior)
        return mean_over_rows(lambda x: posterior_divergences(energy, posterior, x) or {}, v.double(), ROWS)

    def _estimate(
        self, energy: Energy, posterior: Posterior, v: Tensor, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Estimate the KL and the Fisher divergence of each example by Monte Carlo, shape (B,)."""
        noise = posterior.noise((self.n_particles,), v, generator)
        estimates = {}
        if isinstance(energy, MarginalEnergy):
            h = posterior.rsample(v, noise)
            h = h if posterior.continuous else h.round()  # round relaxed latents to binary ones
            bound = (posterior.log_prob(h, v) + energy.energy(v, h)).mean(0)
            estimates["posterior_kl"] = bound - energy.free_energy(v)
        if posterior.continuous:
            estimates["posterior_fisher"] = Fisher().loss(energy, posterior, v, noise)
        return estimates
