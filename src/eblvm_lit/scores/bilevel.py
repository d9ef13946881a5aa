"""The surrogate score of bi-level score matching."""

from __future__ import annotations

from torch import Tensor

from eblvm_lit.core.autograd import grad
from eblvm_lit.energies.base import Energy
from eblvm_lit.posteriors.base import Posterior

__all__ = ["BilevelScore"]


class BilevelScore:
    r"""The score of the marginal as one posterior sample sees it.

    .. math:: \hat s(x) = \nabla_x [-E(x, h) - \log q(h|x)], \quad h \sim q(h|v)

    h does not move with x: it is drawn at v, once, and held; the density of q does move. Equal to the marginal score
    for every h when q is the true posterior. Reference: Bao et al. 2020, Eq. 8.

    Args:
        energy: Gives E.
        posterior: Gives q.
        v: Where h is drawn, shape (B, *event).
        noise: Noise of one latent per example, shape (B, H).

    Example:
        >>> import torch
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.posteriors.bernoulli import BernoulliPosterior
        >>> p, q, v = GRBM(v_dim=2, h_dim=3), BernoulliPosterior(v_dim=2, h_dim=3), torch.zeros(5, 2)
        >>> BilevelScore(p, q, v, q.noise((), v, torch.Generator()))(v).shape
        torch.Size([5, 2])
    """

    def __init__(self, energy: Energy, posterior: Posterior, v: Tensor, noise: Tensor) -> None:
        self.energy, self.posterior = energy, posterior
        self.h = posterior.rsample(v, noise)

    def __call__(self, x: Tensor) -> Tensor:
        """The surrogate, shape (B, *event)."""

        def log_weight(y: Tensor) -> Tensor:
            return (-self.energy.energy(y, self.h) - self.posterior.log_prob(self.h, y)).sum()

        return grad(log_weight)(x)
