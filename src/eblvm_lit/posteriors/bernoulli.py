"""The posterior of independent Bernoulli latents whose logits are linear in v."""

from __future__ import annotations

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor, nn
from torch.nn.functional import softplus

from eblvm_lit.core.tensors import at_least_float32
from eblvm_lit.posteriors.base import DistributionParams, LatentEnergy, Posterior, latent_gradient

__all__ = ["BernoulliPosterior"]


class BernoulliPosterior(Posterior):
    r"""A posterior of independent bits with logits :math:`l = A v + a` and samples relaxed by Gumbel-Softmax.

    .. math:: h = \mathrm{sigmoid}((l + \log u - \log(1 - u)) / \tau), \quad u \sim U(0, 1)
    .. math:: \log q(h|v) = \sum_j h_j l_j - \mathrm{softplus}(l_j)

    The log-probability is the Bernoulli probability mass evaluated at the relaxed h, not the density of the relaxed h.
    The published numbers were obtained this way (Bao et al. 2020, section 5.1). It has a bias that vanishes with the
    temperature. With :math:`\tau = 0` samples are binary and have no gradient; a divergence cannot fit this posterior.

    Args:
        v_dim: The size of v.
        h_dim: The number of latents.
        temperature: The temperature :math:`\tau` of the relaxation.

    Example:
        >>> q = BernoulliPosterior(v_dim=2, h_dim=3)
        >>> v = torch.zeros(5, 2)
        >>> h = q.rsample(v, q.noise((7,), v, torch.Generator()))
        >>> h.shape, q.log_prob(h, v).shape
        (torch.Size([7, 5, 3]), torch.Size([7, 5]))
    """

    continuous = False

    def __init__(self, *, v_dim: PositiveInt, h_dim: PositiveInt, temperature: NonNegativeFloat = 0.1) -> None:
        super().__init__()
        self.h_dim = h_dim
        self.temperature = temperature
        self.reparametrised = temperature > 0
        self.linear = nn.Linear(v_dim, h_dim)

    def logits(self, v: Tensor) -> Tensor:
        """Compute the logits of q(h=1|v), shape (B, H)."""
        return self.distribution_params(v)[0]

    def noise(self, shape: tuple[int, ...], v: Tensor, generator: torch.Generator) -> Tensor:
        """Draw uniform numbers in [0, 1), shape (*shape, B, H)."""
        size = (*shape, len(v), self.h_dim)
        return torch.rand(size, generator=generator, dtype=v.dtype, device=v.device)

    def distribution_params(self, v: Tensor) -> DistributionParams:
        """Compute the logits of q(h=1|v), the only parameters of q, shape (B, H)."""
        return (at_least_float32(self.linear(v)),)

    def rsample_given(self, q_params: DistributionParams, noise: Tensor) -> Tensor:
        """Compute relaxed samples h in (0, 1), shape (*L, B, H), or binary ones if the temperature is 0."""
        # The noise u can be 0. Clamping u to [6e-8, 1 - 6e-8] keeps log u and log(1 - u) finite. 6e-8 is the distance
        # between 1 and the next smaller float32 number.
        perturbed = q_params[0] + torch.logit(noise, eps=6e-8)
        if self.temperature == 0:
            return (perturbed > 0).to(perturbed.dtype)
        return torch.sigmoid(perturbed / self.temperature)

    def sample_given(self, q_params: DistributionParams, noise: Tensor) -> Tensor:
        """Compute binary samples, shape (*L, B, H), by rounding the relaxed samples for the same noise."""
        relaxed = self.rsample_given(q_params, noise)
        return (relaxed > 0.5).to(relaxed.dtype)

    def log_prob_given(self, q_params: DistributionParams, h: Tensor) -> Tensor:
        """Compute log q(h|v) for binary or relaxed latents h, shape (*L, B)."""
        return (h * q_params[0] - softplus(q_params[0])).sum(-1)

    def information_given(self, q_params: DistributionParams) -> DistributionParams:
        """Compute the Fisher information with respect to the logits, q (1 - q) with q = q(h=1|v), shape (B, H)."""
        q = q_params[0].sigmoid()
        return (q * (1 - q),)

    def natural_gradient_step(
        self,
        q_params: DistributionParams,
        energy: LatentEnergy,
        noise: Tensor | None = None,
        *,
        step_size: float = 1.0,
        move_precision: bool = False,
    ) -> DistributionParams:
        r"""Take a natural-gradient step on the logits l of q(h=1|v); see :class:`Posterior`.

        .. math:: l \leftarrow (1 - \rho)\, l - \rho\, E_q[\partial E / \partial h]

        For an energy that is linear in each latent, :math:`E_q[\partial E / \partial h]` is the derivative at q's mean,
        and is :math:`E_q[E(v, h_j = 1, h_{-j}) - E(v, h_j = 0, h_{-j})]`.
        """
        h = q_params[0].sigmoid() if noise is None else self.rsample_given(q_params, noise)
        target = -latent_gradient(energy, h)
        target = target if noise is None else target.mean(0)
        return (target if step_size == 1.0 else torch.lerp(q_params[0], target, step_size),)

    def mean(self, v: Tensor) -> Tensor:
        """Compute the posterior mean q(h=1|v), shape (B, H)."""
        return self.logits(v).sigmoid()
