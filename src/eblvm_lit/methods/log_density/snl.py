"""The self-normalised likelihood, which is maximum likelihood with a learned log Z, and its variational form."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from eblvm_lit.core.functional import bind
from eblvm_lit.core.ranges import Seed
from eblvm_lit.divergences.base import Divergence
from eblvm_lit.energies.base import Energy
from eblvm_lit.methods.log_density.log_densities import LogDensity, bound_or_exact
from eblvm_lit.methods.log_density.self_normalised import SelfNormalisedMethod
from eblvm_lit.methods.state import TrainState
from eblvm_lit.noise_distributions.base import NoiseDistribution
from eblvm_lit.optimizers.base import Optimizer
from eblvm_lit.posteriors.base import Posterior

__all__ = ["SNL", "VSNL"]

HINT = (
    "the model has moved away from its proposal, so that weights exp(-F(y)) / (Z p_n(y)) overflow: raise "
    "method.n_proposals, lower optimizer.lr, or choose noise_distribution=fitted_normal."
)


class SNL(SelfNormalisedMethod):
    r"""The self-normalised likelihood, a lower bound on the log-likelihood with a learned estimate of log Z.

    .. math:: \log Z \le c + e^{-c} Z - 1, \qquad
        \mathrm{loss} = -\log \tilde p(v) + c + \frac1\nu \sum_{i \le \nu} \frac{\tilde p(y_i)\, e^{-c}}{p_n(y_i)} - 1,
        \quad y_i \sim p_n

    c is the learned log Z, and :math:`\log \tilde p = -F` for the exact log-density. For a given theta the best c is
    log Z, where the bound is tight and its gradient with respect to theta is the gradient of the log-likelihood. No
    Markov chain is needed. The loss is a bound for every log-density whose importance weights have the same mean as the
    exact weights. The variance of the weights is finite if p_n has wider tails than the model. The first c is an
    estimate of log Z from samples of p_n. Reference: Senetaire et al. 2025, arXiv 2503.07021, where c is called b.

    Args:
        energy: The model.
        noise_distribution: The proposal distribution p_n.
        optimizer: The optimizer of theta and c.
        log_density: The log-density up to log Z; the exact one, -F(v), if not given.
        n_proposals: The number nu of samples y for each v.
        seed: The seed of all random numbers.
        compile: Whether to compile the iteration; ``auto`` compiles it only in runs long enough to gain from it.

    Raises:
        ConfigError: If the energy has no such log-density.

    Attributes:
        model: The energy together with the learned log Z.

    Example:
        >>> import torch
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.noise_distributions.normal import StandardNormal
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> snl = SNL(energy=GRBM(v_dim=2, h_dim=3), noise_distribution=StandardNormal(), optimizer=Adam(lr=1e-3))
        >>> snl.validation_loss(torch.zeros(5, 2), torch.Generator()).shape
        torch.Size([5])
    """

    def __init__(
        self,
        *,
        energy: Energy,
        noise_distribution: NoiseDistribution,
        optimizer: Optimizer,
        log_density: LogDensity | None = None,
        n_proposals: PositiveInt = 1,
        seed: Seed = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(
            energy=energy,
            noise_distribution=noise_distribution,
            optimizer=optimizer,
            log_density=log_density,
            nu=n_proposals,
            seed=seed,
            compile=compile,
        )

    @property
    def title(self) -> str:
        """Return a readable name of the method, with the number of proposals and the settings of the log-density."""
        samples = f"{self.nu} samples of the proposal for each example"
        return f"{type(self).__name__}: self-normalised likelihood, {samples}{self.log_density.words}"

    def on_fit_start(self) -> None:
        """Fit the proposal distribution p_n to the training split, and initialise the learned log Z."""
        super().on_fit_start()
        self.start_at_log_z()

    def loss(self, state: TrainState, v: Tensor, noise: Any) -> Tensor:
        """Compute the loss of each example, shape (B,). The mean is an upper bound on the negative log-likelihood."""
        y = self.noise_distribution.sample(noise["noise_distribution"].flatten(0, 1))
        at_v, at_y = self.log_densities(state, v, y, noise)
        c = bind(self.model, state.theta).log_z
        weights = (at_y - self.noise_distribution.log_prob(y) - c).exp()
        return c - at_v + weights.view(self.nu, -1).mean(0) - 1

    def failure_hint(self, quantity: str) -> str | None:
        """Return advice on the overflow of importance weights if ``quantity`` is the loss, or None otherwise."""
        return HINT if quantity == "loss" else None

    def float32_reason(self) -> str | None:
        """Return the reason for using float32: the weights are exponentials of differences of large log-densities."""
        return "as its weights are exponentials of small differences of log-densities"


class VSNL(SNL):
    r"""The variational self-normalised likelihood: :class:`SNL` with a bound on the log-density that uses a posterior.

    .. math:: \mathrm{loss} = E(v, h) + \log q(h|v) + c + \frac1\nu \sum_{i \le \nu} \frac1L \sum_{l \le L}
        \frac{\exp(-E(y_i, h_l) - c)}{q(h_l|y_i)\, p_n(y_i)} - 1, \quad h, h_l \sim q, \; y_i \sim p_n

    For every q the mean of the weights is exp(-c) Z. Therefore the loss is an upper bound of the negative
    log-likelihood, as for SNL; it is as tight as SNL's if q(h|v) = p(h|v). Binary h are bits here, because relaxed
    samples would change the mean of the weights. An iteration makes K steps on phi, as in VNCE, and then one step on
    theta and c. Reference: Senetaire et al. 2025, arXiv 2503.07021, for a learned prior; the form for any E(v, h) is
    ours.

    Args:
        energy: The model, with the energy E(v, h; theta).
        noise_distribution: The proposal distribution p_n.
        optimizer: The optimizer of theta and c in the upper level.
        posterior: The posterior q(h|v; phi); None for SNL with the exact log-density.
        divergence: The divergence of q from p that the lower level minimises; None if there is no q.
        n_lower_steps: The number K of steps on phi in each iteration.
        n_particles: The number L of latents drawn for each sample y; one latent is drawn for each v.
        n_proposals: The number nu of samples y for each v.
        lower_optimizer: The optimizer of phi in the lower level; that of the upper level if not given.
        seed: The seed of all random numbers.
        compile: Whether to compile the iteration; ``auto`` compiles it only in runs long enough to gain from it.

    Raises:
        ConfigError: If the components are incompatible.

    Example:
        >>> import torch
        >>> from eblvm_lit.divergences.kl import KL
        >>> from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
        >>> from eblvm_lit.noise_distributions.normal import StandardNormal
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> from eblvm_lit.posteriors.gaussian import LinearGaussianPosterior
        >>> vsnl = VSNL(energy=GaussianLatentModel(v_dim=2, h_dim=3), noise_distribution=StandardNormal(),
        ...             posterior=LinearGaussianPosterior(v_dim=2, h_dim=3), divergence=KL(), optimizer=Adam(lr=1e-3))
        >>> vsnl.validation_loss(torch.zeros(5, 2), torch.Generator()).shape
        torch.Size([5])
    """

    def __init__(
        self,
        *,
        energy: Energy,
        noise_distribution: NoiseDistribution,
        optimizer: Optimizer,
        posterior: Posterior | None = None,
        divergence: Divergence | None = None,
        n_lower_steps: NonNegativeInt = 5,
        n_particles: PositiveInt = 5,
        n_proposals: PositiveInt = 1,
        lower_optimizer: Optimizer | None = None,
        seed: Seed = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(
            energy=energy,
            noise_distribution=noise_distribution,
            optimizer=optimizer,
            log_density=bound_or_exact(
                posterior,
                divergence,
                n_lower_steps=n_lower_steps,
                n_particles=n_particles,
                lower_optimizer=lower_optimizer,
            ),
            n_proposals=n_proposals,
            seed=seed,
            compile=compile,
        )
