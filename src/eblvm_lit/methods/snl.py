"""Maximum likelihood with a learned normaliser: the self-normalised likelihood."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from eblvm_lit.core.functional import bind
from eblvm_lit.energies.base import MarginalEnergy
from eblvm_lit.methods.self_normalised import SelfNormalisedMethod
from eblvm_lit.methods.state import TrainState

__all__ = ["SNL", "SelfNormalisedLikelihood", "negative_bound"]

HINT = (
    "the model has left its proposal, where weights exp(-F(y) - c) / p_n(y) overflow: raise method.n_proposals, lower "
    "optimizer.lr, or choose noise_distribution=fitted_normal."
)


def negative_bound(method: SelfNormalisedMethod, state: TrainState, v: Tensor, noise: Any) -> Tensor:
    r"""The loss per example, shape (B,), from a method's log densities up to Z at v and at its samples y.

    .. math:: -\log \tilde p(v) + c + \frac1n \sum_{i \le n} \exp(\log \tilde p(y_i) - \log p_n(y_i) - c) - 1

    Its mean bounds the negative log-likelihood from above as long as the weights have the mean Z.

    Args:
        method: Whose log densities and p_n these are.
        state: Has its parameters.
        v: The minibatch, shape (B, *event).
        noise: Of ``method.noise``.
    """
    y = method.noise_distribution.sample(noise["noise_distribution"].flatten(0, 1))
    at_v, at_y = method.log_densities(state, v, y, noise)
    c = bind(method.model, state.theta).c
    weights = (at_y - method.noise_distribution.log_prob(y) - c).exp()
    return c - at_v + weights.view(method.n_proposals, -1).mean(0) - 1


class SelfNormalisedLikelihood(SelfNormalisedMethod):
    """What SNL and its variational form share: the loss of their log densities, and c that starts at log Z.

    Args:
        energy, noise_distribution, optimizer, n_proposals, seed, compile: As in
            :class:`~eblvm_lit.methods.self_normalised.SelfNormalisedMethod`.
    """

    def on_fit_start(self) -> None:
        """Fit p_n, and start c."""
        super().on_fit_start()
        self.start_at_log_z()

    def loss(self, state: TrainState, v: Tensor, noise: Any) -> Tensor:
        """The loss per example, shape (B,); see :func:`negative_bound`."""
        return negative_bound(self, state, v, noise)

    def failure_hint(self, quantity: str) -> str | None:
        """What keeps the weights finite."""
        return HINT if quantity == "loss" else None

    def float32_reason(self) -> str | None:
        """A weight is the exponential of a difference of log-densities, which are large in many dimensions."""
        return "as its weights are exponentials of small differences of log-densities"


class SNL(SelfNormalisedLikelihood):
    r"""Self-normalised likelihood: theta and c by a lower bound of the log-likelihood that is tight at c = log Z.

    .. math:: \log Z \le c + e^{-c} Z - 1, \qquad
        \mathrm{loss} = F(v) + c + \frac1n \sum_{i \le n} \frac{\exp(-F(y_i) - c)}{p_n(y_i)} - 1, \quad y_i \sim p_n

    The best c for a theta is log Z, and there the gradient in theta is that of the log-likelihood; no Markov chain is
    needed. The weights have a finite variance where p_n has wider tails than the model. c starts at the estimate of log
    Z by samples of p_n. Reference: Senetaire et al. 2025, arXiv 2503.07021, where c is b.

    Args:
        energy: The model; its free energy must be tractable.
        noise_distribution: p_n, the proposal.
        optimizer: Rule of the only level, which moves theta and c.
        n_proposals: n, the samples y for each v.
        seed: Seed of all noise.
        compile: Whether the iteration is compiled.

    Raises:
        ConfigError: For an energy without a free energy.

    Attributes:
        model: The energy with c.

    Example:
        >>> import torch
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.noise_distributions.normal import StandardNormal
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> snl = SNL(energy=GRBM(v_dim=2, h_dim=3), noise_distribution=StandardNormal(), optimizer=Adam(lr=1e-3))
        >>> snl.validation_loss(torch.zeros(5, 2), torch.Generator()).shape
        torch.Size([5])
    """

    energy_type = MarginalEnergy
    instead = ": use method=vsnl"

    @property
    def title(self) -> str:
        """With n."""
        return f"SNL: self-normalised likelihood, {self.n_proposals} samples of the proposal for each example"
