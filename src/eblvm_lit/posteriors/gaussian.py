"""Gaussian posteriors with a diagonal covariance."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn.functional import softplus

from eblvm_lit.core.functional import jacobian_diagonal
from eblvm_lit.core.ranges import Pair
from eblvm_lit.core.tensors import at_least_float32
from eblvm_lit.networks.base import FeatureNetwork
from eblvm_lit.networks.layers import normal_start, spectrally_normalised, xavier_start
from eblvm_lit.posteriors.base import DistributionParams, LatentEnergy, Posterior, latent_gradient

__all__ = [
    "EncoderPosterior",
    "GaussianPosterior",
    "LinearGaussianPosterior",
    "NetworkGaussianPosterior",
    "SpectralEncoderPosterior",
]


class GaussianPosterior(Posterior):
    r"""The base class of Gaussian posteriors, q(h|v) = N(mean(v), diag exp(2 log_std(v))).

    Samples are :math:`h = \mathrm{mean} + e^{\mathrm{log\,std}} \epsilon` with standard normal :math:`\epsilon`.
    """

    continuous = True

    @abstractmethod
    def moments(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the mean and the log standard deviation of q(h|v), each of shape (B, H)."""

    def noise(self, shape: tuple[int, ...], v: Tensor, generator: torch.Generator) -> Tensor:
        """Draw standard normal numbers, shape (*shape, B, H)."""
        size = (*shape, len(v), self.h_dim)
        return torch.randn(size, generator=generator, dtype=v.dtype, device=v.device)

    def distribution_params(self, v: Tensor) -> DistributionParams:
        """Compute the parameters of q(h|v), which are its mean and log standard deviation; see :meth:`moments`."""
        return self.moments(v)

    def rsample_given(self, q_params: DistributionParams, noise: Tensor) -> Tensor:
        """Compute reparametrised samples h from the parameters of q(h|v) and noise, shape (*L, B, H)."""
        mean, log_std = q_params
        return mean + log_std.exp() * noise

    def log_prob_given(self, q_params: DistributionParams, h: Tensor) -> Tensor:
        """Compute the log density log q(h|v), shape (*L, B)."""
        mean, log_std = q_params
        standardised = (h - mean) * (-log_std).exp()
        return (-0.5 * standardised.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)

    def information_given(self, q_params: DistributionParams) -> DistributionParams:
        """Compute the Fisher information of q: 1 / std^2 for the mean, and 2 for the log standard deviation."""
        return (-2 * q_params[1]).exp(), torch.full_like(q_params[1], 2.0)

    def natural_gradient_step(
        self,
        q_params: DistributionParams,
        energy: LatentEnergy,
        noise: Tensor | None = None,
        *,
        step_size: float = 1.0,
        move_precision: bool = False,
    ) -> DistributionParams:
        r"""Take a natural-gradient step on q's mean, and also on its precision P if ``move_precision`` is true.

        .. math:: x = \rho\, (E_q[\partial^2 E / \partial h^2] / P - 1), \quad P \leftarrow P (1 + x + x^2 / 2), \quad
            \mu \leftarrow \mu - \rho\, P^{-1} E_q[\partial E / \partial h]

        The term in x^2 keeps P positive where E curves downwards (Lin, Schmidt and Khan 2020, "Handling the
        positive-definite constraint in the Bayesian learning rule"), and vanishes at the fixed point. With particles,
        the expected curvature is estimated by :math:`E_q[(\partial E / \partial h)(h - \mu)] P`, which needs no second
        derivative (Price's theorem). The arguments are described at :class:`Posterior`.
        """
        mean, log_std = q_params
        h = mean if noise is None else self.rsample_given(q_params, noise)
        slope = latent_gradient(energy, h)
        if move_precision:
            variance = (2 * log_std).exp()
            if noise is None:
                relative = variance * jacobian_diagonal(lambda h: latent_gradient(energy, h), h)
            else:
                relative = (slope * (h - mean)).mean(0)
            x = step_size * (relative - 1)
            log_std = log_std - 0.5 * (1 + x + 0.5 * x.square()).log()
        slope = slope if noise is None else slope.mean(0)
        return mean - step_size * (2 * log_std).exp() * slope, log_std

    def mean(self, v: Tensor) -> Tensor:
        """Compute the posterior mean E_q[h|v], shape (B, H)."""
        return self.moments(v)[0]


class LinearGaussianPosterior(GaussianPosterior):
    r"""The posterior q(h|v) = N(A v + a, diag s^2), where s does not depend on v (Bao et al. 2021, appendix F.4).

    Args:
        v_dim: The size of v.
        h_dim: The number of latents.

    Example:
        >>> LinearGaussianPosterior(v_dim=2, h_dim=3).mean(torch.zeros(5, 2)).shape
        torch.Size([5, 3])
    """

    def __init__(self, *, v_dim: PositiveInt, h_dim: PositiveInt) -> None:
        super().__init__()
        self.h_dim = h_dim
        self.linear = nn.Linear(v_dim, h_dim)
        self.log_std = nn.Parameter(torch.zeros(h_dim))

    def moments(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the mean and the log standard deviation of q(h|v), each of shape (B, H)."""
        mean = at_least_float32(self.linear(v))
        return mean, self.log_std.expand_as(mean)


class NetworkGaussianPosterior(GaussianPosterior):
    r"""The Gaussian posterior whose mean and log standard deviation are linear in the features of a network.

    With ``std_range`` (a, b) the standard deviation is instead bounded,

    .. math:: s(v) = a + (b - a) / (1 + e^{-l(v)})

    where l is the number that would otherwise be the log standard deviation. For a noisy v that is rare in training,
    an unbounded standard deviation may be e^20, and a single such latent makes the run fail. If E is convex in h
    and contains the term :math:`|h|^2 / (2 r^2)`, the exact posterior is nowhere wider than r, which is then a natural
    upper bound.

    Args:
        network: A module that maps v (B, *event) to features (B, network.out_dim).
        h_dim: The number of latents.
        std_range: The bounds (a, b) of s; null, as published, for none.

    Example:
        >>> from eblvm_lit.networks.mlp import MLP
        >>> q = NetworkGaussianPosterior(network=MLP(sizes=[2, 8, 8]), h_dim=3)
        >>> q.mean(torch.zeros(5, 2)).shape
        torch.Size([5, 3])
    """

    def __init__(
        self,
        *,
        network: FeatureNetwork,
        h_dim: PositiveInt,
        std_range: Pair | None = None,
    ) -> None:
        super().__init__()
        self.h_dim = h_dim
        self.network = network
        self.std_range = std_range
        self.mean_head = nn.Linear(network.out_dim, h_dim)
        self.log_std_head = nn.Linear(network.out_dim, h_dim)

    def moments(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the mean and the log standard deviation of q(h|v), each of shape (B, H)."""
        features = self.network(v)
        mean = at_least_float32(self.mean_head(features))
        raw = at_least_float32(self.log_std_head(features))
        if self.std_range is None:
            return mean, raw
        low, high = self.std_range
        return mean, (low + (high - low) * raw.sigmoid()).log()


class EncoderPosterior(GaussianPosterior):
    r"""The Gaussian posterior whose mean and log variance are linear in the features of a network (BiDVL's encoder).

    .. math:: \log \sigma^2(v) = A g(v) + a

    Reference: Kan et al. 2022, code, where the initial weights of the two linear maps are drawn from N(0, 0.02^2).

    Args:
        network: g, a module that maps v (B, *event) to features (B, network.out_dim).
        h_dim: The number of latents.

    Example:
        >>> import torch
        >>> from eblvm_lit.networks.bidvl_conv import BatchNormEncoder
        >>> q = EncoderPosterior(network=BatchNormEncoder(v_shape=[1, 8, 8], width=2), h_dim=3)
        >>> q.mean(torch.zeros(5, 1, 8, 8)).shape
        torch.Size([5, 3])
    """

    def __init__(self, *, network: FeatureNetwork, h_dim: PositiveInt = 100) -> None:
        super().__init__()
        self.h_dim = h_dim
        self.network = network
        self.mean_head, self.log_variance_head = (normal_start(nn.Linear(network.out_dim, h_dim)) for _ in range(2))

    def moments(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the mean and the log standard deviation of q(h|v), each of shape (B, H)."""
        features = self.network(v)
        return at_least_float32(self.mean_head(features)), 0.5 * at_least_float32(self.log_variance_head(features))


class SpectralEncoderPosterior(EncoderPosterior):
    r"""The Gaussian posterior used with BiDVL's residual networks, with spectral normalisation and variances below one.

    .. math:: \log \sigma^2(v) = -\log(1 + e^{A g(v) + a})

    The paper's text has softplus without the minus sign, which would make every variance larger than one. Reference:
    Kan et al. 2022, code of the residual networks.

    Args:
        network: g, a module that maps v (B, *event) to features (B, network.out_dim).
        h_dim: The number of latents.
        bias: Whether the linear maps have a bias; the published ones do at 32 pixels and do not at 128.

    Example:
        >>> import torch
        >>> from eblvm_lit.networks.mlp import MLP
        >>> q = SpectralEncoderPosterior(network=MLP(sizes=[2, 8]), h_dim=3)
        >>> bool((q.moments(torch.randn(5, 2))[1] < 0).all())
        True
    """

    def __init__(self, *, network: FeatureNetwork, h_dim: PositiveInt = 128, bias: bool = True) -> None:
        super().__init__(network=network, h_dim=h_dim)
        self.mean_head, self.log_variance_head = (
            spectrally_normalised(xavier_start(nn.Linear(network.out_dim, h_dim, bias=bias))) for _ in range(2)
        )

    def moments(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the mean of q(h|v) and the (always negative) logarithm of its standard deviation, shapes (B, H)."""
        mean, raw = super().moments(v)
        return mean, -0.5 * softplus(2 * raw)
