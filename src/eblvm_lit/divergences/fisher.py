"""The Fisher divergence of q(h|v) from p(h|v)."""

from __future__ import annotations

from torch import Tensor

from eblvm_lit.core.functional import grad
from eblvm_lit.core.tensors import sum_event
from eblvm_lit.divergences.base import Divergence
from eblvm_lit.energies.base import Energy
from eblvm_lit.errors import ConfigError
from eblvm_lit.posteriors.base import Posterior

__all__ = ["Fisher"]


class Fisher(Divergence):
    r"""The Fisher divergence of q(h|v) from p(h|v), for continuous latents.

    .. math:: \tfrac12 E_{q(h|v)} \| \nabla_h \log q(h|v) + \nabla_h E(v, h) \|^2

    The value is the divergence itself. :class:`~eblvm_lit.divergences.kl.KL`, in contrast, leaves out an unknown term
    that depends on v. The gradient in h is a partial derivative at constant q. The gradient in phi goes through the
    reparametrised h and through log q(h|v). Reference: Bao et al. 2020, Eq. 11.

    Example:
        >>> import torch
        >>> from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
        >>> from eblvm_lit.posteriors.gaussian import LinearGaussianPosterior
        >>> p, q = GaussianLatentModel(v_dim=2, h_dim=3), LinearGaussianPosterior(v_dim=2, h_dim=3)
        >>> v = torch.zeros(5, 2)
        >>> Fisher().loss(p, q, v, q.noise((1,), v, torch.Generator())).shape
        torch.Size([5])
    """

    def check(self, posterior: Posterior) -> None:
        """Raise a ConfigError if the latents are binary.

        Raises:
            ConfigError: If the latents are binary, so that grad_h log q(h|v) does not exist.
        """
        super().check(posterior)
        if not posterior.continuous:
            raise ConfigError(
                f"divergence=fisher needs continuous latents, but {type(posterior).__name__} is binary: "
                "use divergence=kl."
            )

    def loss(self, energy: Energy, posterior: Posterior, v: Tensor, noise: Tensor) -> Tensor:
        """Estimate the Fisher divergence of each example, shape (B,)."""
        q_params = posterior.distribution_params(v)
        energy_at_v = energy.at(v)

        def log_ratio(h: Tensor) -> Tensor:
            return (-energy_at_v(h) - posterior.log_prob_given(q_params, h)).sum()

        gap = grad(log_ratio)(posterior.rsample_given(q_params, noise))
        return 0.5 * sum_event(gap.square(), batch_dims=2).mean(0)
