"""The base class of variational posteriors q(h|v; phi)."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from eblvm_lit.core.eval_mode import eval_mode
from eblvm_lit.core.functional import grad
from eblvm_lit.energies.base import LatentEnergy

__all__ = ["DistributionParams", "LatentEnergy", "Posterior", "latent_gradient", "posterior_mean"]

DistributionParams = tuple[Tensor, ...]


def latent_gradient(energy: LatentEnergy, h: Tensor) -> Tensor:
    """Compute the gradient of the energy E(v, h) with respect to h, shape (*L, B, H)."""
    return grad(lambda h: energy(h).sum())(h)


class Posterior(nn.Module, ABC):
    """A variational posterior q(h|v; phi), sampled from noise that the caller draws.

    In all shapes B is the number of examples, ``*event`` is the shape of one v, H is the number of latents, and ``*L``
    stands for any number of leading axes, such as one of L particles for each v.

    Attributes:
        h_dim: The number of latents.
        continuous: Whether log q(h|v) has a meaningful gradient in h; False for (relaxed) binary latents.
        reparametrised: Whether samples have a gradient in phi; False for bits that are not relaxed.
    """

    h_dim: int
    continuous: bool
    reparametrised: bool = True

    def extra_repr(self) -> str:
        """Return the number of latents, for the module's printed representation."""
        return f"h_dim={self.h_dim}"

    @abstractmethod
    def noise(self, shape: tuple[int, ...], v: Tensor, generator: torch.Generator) -> Tensor:
        """Draw the noise that :meth:`rsample` needs, shape (*shape, B, H), with v's dtype and device."""

    @abstractmethod
    def distribution_params(self, v: Tensor) -> DistributionParams:
        """Pass v through the network, and return the parameters of the distribution q(h|v), each of shape (B, H)."""

    @abstractmethod
    def rsample_given(self, q_params: DistributionParams, noise: Tensor) -> Tensor:
        """Compute reparametrised samples h, shape (*L, B, H), from the parameters of q(h|v) and noise (*L, B, H)."""

    @abstractmethod
    def log_prob_given(self, q_params: DistributionParams, h: Tensor) -> Tensor:
        """Compute log q(h|v), shape (*L, B), from the parameters of q(h|v) and the latents h (*L, B, H)."""

    @abstractmethod
    def information_given(self, q_params: DistributionParams) -> DistributionParams:
        """Compute, for each parameter of q(h|v), the diagonal of the Fisher information matrix, shape (B, H)."""

    def natural_gradient_step(
        self,
        q_params: DistributionParams,
        energy: LatentEnergy,
        noise: Tensor | None = None,
        *,
        step_size: float = 1.0,
        move_precision: bool = False,
    ) -> DistributionParams:
        r"""Take one natural-gradient step on KL(q(h) || p(h|v)) in q's natural parameters, for each v.

        .. math:: \lambda \leftarrow (1 - \rho)\, \lambda + \rho\, T(\lambda), \quad
            T(\lambda) = -\nabla_m E_q[E(v, h)]

        lambda are the natural parameters and m the mean parameters. The fixed point of T is the optimal q in the
        family. For independent latents the iteration is that of mean-field inference. Reference: Khan and Rue 2021,
        "The Bayesian learning rule".

        Args:
            q_params: The parameters of q as :meth:`distribution_params` returns them, each of shape (B, H).
            energy: The function E(v, .), see :meth:`~eblvm_lit.energies.base.Energy.at`.
            noise: Noise for the L particles that estimate the expectation, shape (L, B, H). If not given, the
                expectation is replaced by the value at q's mean.
            step_size: The step size rho.
            move_precision: Whether a Gaussian q also updates its precision, and not only its mean.

        Returns:
            The updated parameters, in the form of ``q_params``.

        Raises:
            NotImplementedError: If the family does not implement natural-gradient steps.
        """
        raise NotImplementedError(f"{type(self).__name__} has no natural parameters.")

    def rsample(self, v: Tensor, noise: Tensor) -> Tensor:
        """Compute reparametrised samples h ~ q(h|v), shape (*L, B, H), from v (B, *event) and noise (*L, B, H)."""
        return self.rsample_given(self.distribution_params(v), noise)

    def log_prob(self, h: Tensor, v: Tensor) -> Tensor:
        """Compute log q(h|v), shape (*L, B), for h (*L, B, H) and v (B, *event)."""
        return self.log_prob_given(self.distribution_params(v), h)

    def rsample_and_log_prob(self, v: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Compute reparametrised samples h ~ q(h|v) and their log-probabilities, in one pass through the posterior."""
        q_params = self.distribution_params(v)
        h = self.rsample_given(q_params, noise)
        return h, self.log_prob_given(q_params, h)

    def sample_given(self, q_params: DistributionParams, noise: Tensor) -> Tensor:
        """Compute exact samples h ~ q(h|v), shape (*L, B, H); binary samples have no gradient.

        Samples of binary latents are bits, while :meth:`rsample_given` returns relaxed values.
        """
        return self.rsample_given(q_params, noise)

    def sample_and_log_prob(self, v: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Compute exact samples h ~ q(h|v) and their log-probabilities, in one pass through the posterior.

        They serve importance weights, whose gradient with respect to theta does not pass through h.
        """
        q_params = self.distribution_params(v)
        h = self.sample_given(q_params, noise)
        return h, self.log_prob_given(q_params, h)

    @abstractmethod
    def mean(self, v: Tensor) -> Tensor:
        """Compute the posterior mean E_q[h|v], shape (B, H)."""

    def forward(self, v: Tensor) -> Tensor:
        """Compute the posterior mean E_q[h|v]; see :meth:`mean`."""
        return self.mean(v)


def posterior_mean(posterior: Posterior, v: Tensor) -> Tensor:
    """Compute the posterior mean E_q[h|v], shape (B, H), with the posterior in evaluation mode.

    Args:
        posterior: The posterior q.
        v: Examples, shape (B, *event), floats on any device.

    Example:
        >>> from eblvm_lit.posteriors.gaussian import LinearGaussianPosterior
        >>> posterior_mean(LinearGaussianPosterior(v_dim=2, h_dim=3), torch.zeros(5, 2)).requires_grad
        False
    """
    with eval_mode(posterior), torch.no_grad():
        return posterior.mean(v.to(next(posterior.parameters())))
