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
    """dE(v, h)/dh, of h's shape (*L, B, H)."""
    return grad(lambda h: energy(h).sum())(h)


class Posterior(nn.Module, ABC):
    """q(h|v; phi), sampled with noise that is drawn outside.

    Attributes:
        h_dim: Number of latents.
        continuous: Whether grad_h log q(h|v) means something; false for (relaxed) binary latents.
        has_natural_params: Whether q(h|v) is an exponential family, and :meth:`natural_gradient_step` there.
    """

    h_dim: int
    continuous: bool
    has_natural_params = False

    def extra_repr(self) -> str:
        """The size, for ``print``."""
        return f"h_dim={self.h_dim}"

    @abstractmethod
    def noise(self, shape: tuple[int, ...], v: Tensor, generator: torch.Generator) -> Tensor:
        """Noise for :meth:`rsample`, shape (*shape, B, H), of v's type and device."""

    @abstractmethod
    def distribution_params(self, v: Tensor) -> DistributionParams:
        """Parameters of q(h|v) as a distribution, each of shape (B, H): what costs a pass through the posterior."""

    @abstractmethod
    def rsample_given(self, q_params: DistributionParams, noise: Tensor) -> Tensor:
        """Reparametrised h, shape (*L, B, H), of q's parameters and noise (*L, B, H)."""

    @abstractmethod
    def log_prob_given(self, q_params: DistributionParams, h: Tensor) -> Tensor:
        """log q(h), shape (*L, B), of q's parameters and h (*L, B, H)."""

    @abstractmethod
    def information_given(self, q_params: DistributionParams) -> DistributionParams:
        """Fisher information of h about these parameters, which is diagonal, each of shape (B, H)."""

    def natural_gradient_step(
        self,
        q_params: DistributionParams,
        energy: LatentEnergy,
        noise: Tensor | None = None,
        *,
        step_size: float = 1.0,
        move_precision: bool = False,
    ) -> DistributionParams:
        r"""One step of natural-gradient descent of KL(q(h) || p(h|v)) in q's natural parameters, for each v.

        .. math:: \lambda \leftarrow (1 - \rho)\, \lambda + \rho\, T(\lambda), \quad
            T(\lambda) = -\nabla_m E_q[E(v, h)]

        m are the mean parameters. T's fixed point is the optimal q of the family. References: Khan and Rue 2021, "The
        Bayesian learning rule"; for independent latents this is the mean-field iteration.

        Args:
            q_params: Parameters of q as :meth:`distribution_params` gives them, each of shape (B, H).
            energy: E(v, .), see :meth:`~eblvm_lit.energies.base.Energy.at`.
            noise: Of L particles by which the expectation is estimated, shape (L, B, H); at q's mean if not given.
            step_size: rho.
            move_precision: Whether the precision of a Gaussian moves, or its mean alone.

        Raises:
            NotImplementedError: For a family that has no natural parameters here.
        """
        raise NotImplementedError(f"{type(self).__name__} has no natural parameters.")

    def rsample(self, v: Tensor, noise: Tensor) -> Tensor:
        """Reparametrised h ~ q(h|v), shape (*L, B, H), of v (B, *event) and noise (*L, B, H)."""
        return self.rsample_given(self.distribution_params(v), noise)

    def log_prob(self, h: Tensor, v: Tensor) -> Tensor:
        """log q(h|v), shape (*L, B), of h (*L, B, H) and v (B, *event)."""
        return self.log_prob_given(self.distribution_params(v), h)

    def rsample_and_log_prob(self, v: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """h ~ q(h|v) and log q(h|v), in one pass through the posterior."""
        q_params = self.distribution_params(v)
        h = self.rsample_given(q_params, noise)
        return h, self.log_prob_given(q_params, h)

    def sample_given(self, q_params: DistributionParams, noise: Tensor) -> Tensor:
        """h ~ q itself, shape (*L, B, H), where no gradient has to pass through h; of binary latents bits."""
        return self.rsample_given(q_params, noise)

    def sample_and_log_prob(self, v: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """h ~ q(h|v) itself and log q(h|v), in one pass: for importance weights that are differentiated in theta."""
        q_params = self.distribution_params(v)
        h = self.sample_given(q_params, noise)
        return h, self.log_prob_given(q_params, h)

    @abstractmethod
    def mean(self, v: Tensor) -> Tensor:
        """E_q[h|v], shape (B, H)."""

    def forward(self, v: Tensor) -> Tensor:
        """The posterior mean; see :meth:`mean`."""
        return self.mean(v)


def posterior_mean(posterior: Posterior, v: Tensor) -> Tensor:
    """E_q[h|v], shape (B, H), with the posterior in evaluation mode.

    Args:
        posterior: q.
        v: Shape (B, *event), floats on any device.

    Example:
        >>> from eblvm_lit.posteriors.gaussian import LinearGaussianPosterior
        >>> posterior_mean(LinearGaussianPosterior(v_dim=2, h_dim=3), torch.zeros(5, 2)).requires_grad
        False
    """
    with eval_mode(posterior), torch.no_grad():
        return posterior.mean(v.to(next(posterior.parameters())))
