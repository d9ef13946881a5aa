"""The encoder of doubly variational learning."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import softplus

from eblvm_lit.core.functional import at_least_float32
from eblvm_lit.networks.initialisation import normal_start, spectrally_normalised, xavier_start
from eblvm_lit.posteriors.gaussian import GaussianPosterior

__all__ = ["EncoderPosterior", "SpectralEncoderPosterior"]


class EncoderPosterior(GaussianPosterior):
    r"""q(h|v) whose mean and log variance are linear in the features of a network.

    .. math:: \log \sigma^2(v) = A g(v) + a

    Reference: Kan et al. 2022, code, where the two maps start from N(0, 0.02^2).

    Args:
        network: g, maps v (B, *event) to features (B, network.out_dim).
        h_dim: Number of latents.

    Example:
        >>> import torch
        >>> from eblvm_lit.networks.batch_norm_encoder import BatchNormEncoder
        >>> q = EncoderPosterior(network=BatchNormEncoder(v_shape=[1, 8, 8], width=2), h_dim=3)
        >>> q.mean(torch.zeros(5, 1, 8, 8)).shape
        torch.Size([5, 3])
    """

    def __init__(self, *, network: nn.Module, h_dim: int = 100) -> None:
        super().__init__()
        self.h_dim, self.network = h_dim, network
        self.mean_head, self.log_variance_head = (normal_start(nn.Linear(network.out_dim, h_dim)) for _ in range(2))

    def log_variance(self, raw: Tensor) -> Tensor:
        """Of what the network gives, shape (B, H)."""
        return raw

    def moments(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation, each of shape (B, H)."""
        features = self.network(v)
        raw = at_least_float32(self.log_variance_head(features))
        return at_least_float32(self.mean_head(features)), 0.5 * self.log_variance(raw)


class SpectralEncoderPosterior(EncoderPosterior):
    r"""The same with spectral norms and variances below one.

    .. math:: \log \sigma^2(v) = -\log(1 + e^{A g(v) + a})

    The text has softplus without the minus sign, which would bound the variance from below, at one. Reference: Kan et
    al. 2022, code of the residual networks.

    Args:
        network: g, maps v (B, *event) to features (B, network.out_dim).
        h_dim: Number of latents.
        bias: Whether there is an a; published with one at 32 pixels and without at 128.

    Example:
        >>> import torch
        >>> from eblvm_lit.networks.mlp import MLP
        >>> q = SpectralEncoderPosterior(network=MLP(sizes=[2, 8]), h_dim=3)
        >>> bool((q.moments(torch.randn(5, 2))[1] < 0).all())
        True
    """

    def __init__(self, *, network: nn.Module, h_dim: int = 128, bias: bool = True) -> None:
        super().__init__(network=network, h_dim=h_dim)
        self.mean_head, self.log_variance_head = (
            spectrally_normalised(xavier_start(nn.Linear(network.out_dim, h_dim, bias=bias))) for _ in range(2)
        )

    def log_variance(self, raw: Tensor) -> Tensor:
        """Below zero, of what the network gives, shape (B, H)."""
        return -softplus(raw)
