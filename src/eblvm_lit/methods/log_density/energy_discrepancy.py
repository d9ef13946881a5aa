"""Energy discrepancy, a loss that compares the energy of data with the energy of perturbed data."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from eblvm_lit.core.ranges import Fraction, Seed
from eblvm_lit.divergences.base import Divergence
from eblvm_lit.energies.base import Energy
from eblvm_lit.methods.log_density.log_densities import ExactLogDensity, LogDensity, bound_or_exact
from eblvm_lit.methods.loss_method import LossMethod
from eblvm_lit.methods.posterior_fit import PosteriorFit
from eblvm_lit.methods.state import TrainState
from eblvm_lit.optimizers.base import Optimizer
from eblvm_lit.posteriors.base import Posterior

__all__ = ["EnergyDiscrepancy", "LatentEnergyDiscrepancy"]


class EnergyDiscrepancy(LossMethod):
    r"""Energy discrepancy with a random perturbation, a loss that needs no score, no Markov chain and no log Z.

    .. math:: L = E \log \Bigl( \frac wM + \frac1M \sum_{i=1}^M \exp\bigl( F(v) - F(u_i) \bigr) \Bigr), \quad
        u_i = v + \sigma \xi + \sigma \xi_i, \quad \xi, \xi_i \sim N(0, I)

    u_i are the negatives of v. For w = 0 and growing M, L tends to
    :math:`E[F(v)] + E \log \int N(y; u, \sigma^2 I)\, e^{-F(u)} du`, :math:`y = v + \sigma \xi`. For every
    :math:`\sigma` this limit is smallest if exp(-F) is proportional to the density of the data. For a finite M the
    minimum is biased by O(1 / M). The bias is largest with w = 0, where the loss has no minimum if M is small (for
    M = 1 it is linear in F); w > 0 bounds the loss from below.

    If v is binary, the perturbation flips each bit with a probability p:

    .. math:: u_i = (v + \xi + \xi_i) \bmod 2, \quad \xi, \xi_i \sim \mathrm{Bernoulli}(p)^d

    Another log-density may replace -F. If it needs a posterior, K steps on phi fit the posterior at v and at one new
    negative of each v, because the loss evaluates q at both. Reference: Schroeder et al. 2023, arXiv:2307.06431
    (w-stabilised; sigma = 1, M = 4, w = 1 for points of the plane); Schroeder et al. 2023, arXiv:2307.07595 (binary v).

    Args:
        energy: The model.
        optimizer: The optimizer of theta.
        log_density: The log-density up to log Z; the exact one, -F(v), if not given.
        noise_std: The standard deviation sigma of the perturbation, in the units of v; its square is the paper's t.
        flip_probability: The probability p with which a perturbation flips a bit, if v is binary.
        n_negatives: The number M of negatives of each v.
        w: The stabiliser w >= 0.
        seed: The seed of all random numbers.
        compile: Whether to compile the iteration; ``auto`` compiles it only in runs long enough to gain from it.

    Raises:
        ConfigError: If the energy has no such log-density.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> ed = EnergyDiscrepancy(energy=GRBM(v_dim=2, h_dim=3), noise_std=0.5, optimizer=Adam(lr=1e-3))
        >>> ed.validation_loss(torch.zeros(5, 2), torch.Generator()).shape
        torch.Size([5])
    """

    def __init__(
        self,
        *,
        energy: Energy,
        optimizer: Optimizer,
        log_density: LogDensity | None = None,
        noise_std: PositiveFloat = 1.0,
        flip_probability: Fraction = 0.1,
        n_negatives: PositiveInt = 4,
        w: NonNegativeFloat = 1.0,
        seed: Seed = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(energy=energy, optimizer=optimizer, seed=seed, compile=compile)
        self.log_density: LogDensity = log_density or ExactLogDensity()
        self.log_density.check(energy)
        self.fit_posterior(**self.log_density.lower_level)
        self.noise_std = noise_std
        self.flip_probability = flip_probability
        self.n_negatives = n_negatives
        self.w = w

    @property
    def title(self) -> str:
        """Return a readable name of the method, with its settings and the settings of the log-density estimate."""
        size = f"p = {self.flip_probability:g}" if self.energy.binary_visible else f"sigma = {self.noise_std:g}"
        numbers = f"{size}, M = {self.n_negatives}, w = {self.w:g}{self.log_density.words}"
        return f"ED: energy discrepancy, {numbers}"

    def noise(self, v: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw 1 + M perturbations of each example, shape (1 + M, B, *event), and the noise of the log-densities."""
        xi = self._perturbation(v, (1 + self.n_negatives,), generator)
        return {"perturbation": xi, **self.log_density.noise(v, xi[1:].flatten(0, 1), generator)}

    def _perturbation(self, v: Tensor, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draw standard normal random numbers, or bits that are 1 where v is flipped, shape (*shape, B, *event)."""
        drawn = v.new_empty((*shape, *v.shape))
        if self.energy.binary_visible:
            return drawn.bernoulli_(self.flip_probability, generator=generator)
        return drawn.normal_(generator=generator)

    def fit_noise(self, fit: PosteriorFit, v: Tensor, generator: torch.Generator) -> dict[str, Any]:
        """Draw the random numbers of the K steps on the posterior.

        They consist of the noise of the latents at v and at one negative of each v, and of the perturbations that give
        these negatives.
        """
        latents = super().fit_noise(fit, torch.cat([v, v]), generator)
        return {**latents, "perturbation": self._perturbation(v, (self.n_lower_steps, 2), generator)}

    def fit_points(self, v: Tensor, noise: dict[str, Any], k: int) -> Tensor:
        """Return the points at which the k-th step fits the posterior: the data and their negatives."""
        return torch.cat([v, self.negatives(v, {"perturbation": noise["perturbation"][k]}).flatten(0, 1)])

    def negatives(self, v: Tensor, noise: dict[str, Tensor]) -> Tensor:
        """Compute M negatives of each example by perturbing the data v (B, *event), shape (M, B, *event)."""
        xi = noise["perturbation"]
        xi = xi[:1] + xi[1:]
        return (v + xi).remainder(2) if self.energy.binary_visible else v + self.noise_std * xi

    def energy_differences(self, state: TrainState, v: Tensor, u: Tensor, noise: Any) -> Tensor:
        """Compute or estimate the differences between the free energies of data v and negatives u, shape (M, B).

        The differences are F(v) - F(u_i). The data v have shape (B, *event), the negatives u have shape (M, B, *event).
        """
        energy = self.energy_at(state.theta)
        rows = u.flatten(0, 1)
        if self.posterior is None:  # F at both v and u is computed in one pass through the energy's network
            at_v, at_u = self.log_density(energy, None, torch.cat([v, rows]), None).tensor_split([len(v)])
        else:
            at_v, at_u = self.log_density.pair(energy, self.posterior_at(state), v, rows, noise)
        return at_u.view(u.shape[:2]) - at_v

    def loss(self, state: TrainState, v: Tensor, noise: Any) -> Tensor:
        """Compute the loss of each example, shape (B,)."""
        terms = self.energy_differences(state, v, self.negatives(v, noise), noise)
        if self.w > 0:
            terms = torch.cat([terms, torch.full_like(terms[:1], math.log(self.w))])
        return terms.logsumexp(0) - math.log(self.n_negatives)

    def float32_reason(self) -> str | None:
        """Return the reason for using float32: the exponents are small differences of large free energies."""
        return "as its exponents are small differences of free energies"


class LatentEnergyDiscrepancy(EnergyDiscrepancy):
    r"""Energy discrepancy with importance-weighted estimates of the free energy.

    It is :class:`EnergyDiscrepancy` with the log-density bound in place of -F, at v and at each negative u:

    .. math:: F(v) \approx -\log \frac1L \sum_{l=1}^L \frac{e^{-E(v, h_l)}}{q(h_l|v)}, \quad h_l \sim q(h|v)

    Binary h are not relaxed here. The mean of this estimate is above F, see
    :class:`~eblvm_lit.methods.log_density.log_densities.LogDensityBound`. The estimates at v therefore bias the loss
    upwards, and the estimates at u bias it downwards, both by O(1 / L). This method is not published: it is the loss of
    Schroeder et al. 2023, arXiv:2307.06431, with the estimates that Rhodes and Gutmann 2019 use in noise-contrastive
    estimation.

    Args:
        energy: The model, with the energy E(v, h; theta).
        optimizer: The optimizer of theta in the upper level.
        posterior: The posterior q(h|v; phi); None for the exact free energy.
        divergence: The divergence of q from p that the lower level minimises; None if there is no q.
        n_lower_steps: The number K of steps on phi in each iteration.
        n_particles: The number L of latents drawn for each point.
        noise_std: The standard deviation sigma of the perturbation, in the units of v.
        flip_probability: The probability with which a perturbation flips a bit, if v is binary.
        n_negatives: The number M of negatives of each v.
        w: The stabiliser w >= 0.
        lower_optimizer: The optimizer of phi in the lower level; that of the upper level if not given.
        seed: The seed of all random numbers.
        compile: Whether to compile the iteration; ``auto`` compiles it only in runs long enough to gain from it.

    Raises:
        ConfigError: If the components are incompatible.

    Example:
        >>> from eblvm_lit.divergences.kl import KL
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> from eblvm_lit.posteriors.bernoulli import BernoulliPosterior
        >>> ed = LatentEnergyDiscrepancy(
        ...     energy=GRBM(v_dim=2, h_dim=3), posterior=BernoulliPosterior(v_dim=2, h_dim=3), divergence=KL(),
        ...     optimizer=Adam(lr=1e-3), noise_std=0.5)
        >>> list(ed.param_groups())
        ['lower', 'upper']
    """

    def __init__(
        self,
        *,
        energy: Energy,
        optimizer: Optimizer,
        posterior: Posterior | None = None,
        divergence: Divergence | None = None,
        n_lower_steps: NonNegativeInt = 5,
        n_particles: PositiveInt = 5,
        noise_std: PositiveFloat = 1.0,
        flip_probability: Fraction = 0.1,
        n_negatives: PositiveInt = 4,
        w: NonNegativeFloat = 1.0,
        lower_optimizer: Optimizer | None = None,
        seed: Seed = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(
            energy=energy,
            optimizer=optimizer,
            log_density=bound_or_exact(
                posterior,
                divergence,
                n_lower_steps=n_lower_steps,
                n_particles=n_particles,
                n_at_data=n_particles,
                lower_optimizer=lower_optimizer,
            ),
            noise_std=noise_std,
            flip_probability=flip_probability,
            n_negatives=n_negatives,
            w=w,
            seed=seed,
            compile=compile,
        )
