"""The self-normalised likelihood of models whose latents cannot be summed out."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from eblvm_lit.core.ranges import Seed
from eblvm_lit.divergences.base import Divergence
from eblvm_lit.divergences.kl import importance_weighted_bound
from eblvm_lit.energies.base import Energy
from eblvm_lit.methods.snl import SelfNormalisedLikelihood
from eblvm_lit.methods.vnce import VNCE
from eblvm_lit.noise_distributions.base import NoiseDistribution
from eblvm_lit.optimizers.base import Optimizer
from eblvm_lit.posteriors.base import Posterior

__all__ = ["VSNL"]


class VSNL(SelfNormalisedLikelihood, VNCE):
    r"""Self-normalised likelihood with the evidence bound at the data and weights of (y, h) at the proposal.

    .. math:: \mathrm{loss} = E(v, h) + \log q(h|v) + c + \frac1n \sum_{i \le n} \frac1L \sum_{l \le L}
        \frac{\exp(-E(y_i, h_l) - c)}{q(h_l|y_i)\, p_n(y_i)} - 1, \quad h, h_l \sim q, \; y_i \sim p_n

    The weights have the mean exp(-c) Z whatever q is, so the loss is a bound of the negative log-likelihood as SNL's
    is, and tight where q(h|v) = p(h|v). Binary h are bits here: relaxed ones would give the weights another mean. An
    iteration is K steps on phi as in VNCE, then one on theta and c. Reference: Senetaire et al. 2025, arXiv
    2503.07021, for a learned prior; the form for any E(v, h) is ours.

    Args:
        energy: The model, E(v, h; theta).
        noise_distribution: p_n, the proposal.
        optimizer: Rule of the upper level, which moves theta and c.
        posterior: q(h|v; phi); null for p(h|v).
        divergence: Of q from p; null where there is no q.
        n_lower_steps: K.
        n_particles: L.
        n_proposals: n, the samples y for each v.
        lower_optimizer: Rule of the lower level; the upper one's if not given.
        seed: Seed of all noise.
        compile: Whether the iteration is compiled.

    Raises:
        ConfigError: For parts that do not fit together.

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
            posterior=posterior,
            divergence=divergence,
            n_lower_steps=n_lower_steps,
            n_particles=n_particles,
            nu=n_proposals,
            lower_optimizer=lower_optimizer,
            seed=seed,
            compile=compile,
        )

    @property
    def title(self) -> str:
        """With n and K."""
        n = f"{self.n_proposals} samples of the proposal for each example"
        return f"VSNL: variational self-normalised likelihood, {n}, K = {self.n_lower_steps}"

    def log_bound(self, energy: Energy, q: Any, v: Tensor, noise: Tensor) -> Tensor:
        """The bound that replaces -F(v), shape (B,), of v (B, *event); binary h are bits."""
        return -importance_weighted_bound(energy, v, *q.sample_and_log_prob(v, noise))
