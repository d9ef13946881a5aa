"""Deep energies: of v alone, and of v and latents without a tractable posterior or marginal."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn.functional import linear

from eblvm_lit.core.ranges import Sizes
from eblvm_lit.core.tensors import at_least_float32
from eblvm_lit.energies.base import FeatureEnergy, LatentEnergy, VisibleEnergy
from eblvm_lit.errors import ConfigError
from eblvm_lit.networks.base import FeatureNetwork
from eblvm_lit.networks.heads import QuadraticHead, SquaredNormHead
from eblvm_lit.networks.residual_mlp import ResidualMLP
from eblvm_lit.networks.resnet import ResNet

__all__ = ["DeepEnergy", "DeepLatentEnergy", "DeepVectorEnergy"]


def _recompute(network: object) -> list[str]:
    if isinstance(network, ResNet) and not network.checkpoint:
        return ["set model.network.checkpoint=true with method.compile=false"]
    return []


def _reference(x: Tensor, std: float, n_axes: int) -> Tensor:
    """The energy |x|^2 / (2 s^2) of N(0, s^2 I), shape (*B,), of x (*B, *event) whose event has so many axes."""
    return at_least_float32(x).flatten(-n_axes).square().sum(-1) / (2 * std**2)


class DeepEnergy(VisibleEnergy):
    r"""A network's features under one of two heads, without latents: the fully visible baseline.

    .. math:: F(v) = (w_1^\top f + b_1)(w_2^\top f + b_2) + w_3^\top (f \circ f) + b_3, \quad f = g_1(v)

    with the quadratic head (Li et al. 2019), or :math:`\sum_k \mathrm{ELU}(A f + a)_k^2` with the squared norm (Bao et
    al. 2020, code). On CIFAR10 the first has as many parameters as the latent-variable model it is compared with, and
    the second three times as many.

    Args:
        network: g_1, a module that maps v (B, *event) to features (B, network.out_dim), and says network.event_shape.
        head: ``quadratic`` or ``squared_norm``.
        head_dim: Rows of A; half as many as g_1 has features if not given. Of no meaning to the quadratic head.
        reference_std: s, where the model tilts N(0, s^2 I): F has :math:`\|v\|^2 / (2 s^2)` beside the head.

    Raises:
        ConfigError: For a head_dim that is not used.

    Example:
        >>> import torch
        >>> from eblvm_lit.networks.resnet import ResNet
        >>> energy = DeepEnergy(network=ResNet(v_shape=[1, 8, 8], n_blocks=1, channels=2))
        >>> energy(torch.zeros(5, 1, 8, 8)).shape, energy.score(torch.zeros(5, 1, 8, 8)).shape
        (torch.Size([5]), torch.Size([5, 1, 8, 8]))
    """

    def __init__(
        self,
        *,
        network: FeatureNetwork,
        head: Literal["quadratic", "squared_norm"] = "quadratic",
        head_dim: PositiveInt | None = None,
        reference_std: PositiveFloat | None = None,
    ) -> None:
        super().__init__()
        self.reference_std = reference_std
        if head == "quadratic" and head_dim is not None:
            raise ConfigError(f"head=quadratic has no head_dim: use head=squared_norm, or leave out {head_dim}.")
        self.event_shape = tuple(network.event_shape)
        self.network = network
        width = network.out_dim // 2 if head_dim is None else head_dim
        n = network.out_dim
        self.head = QuadraticHead(in_dim=n) if head == "quadratic" else SquaredNormHead(in_dim=n, width=width)

    def free_energy(self, v: Tensor) -> Tensor:
        """F(v), shape (B,), of v (B, *event)."""
        value = self.head(self.network(v))
        std = self.reference_std
        return value if std is None else value + _reference(v, std, len(self.event_shape))

    def memory_hints(self) -> list[str]:
        """Recomputed activations, where the network can do that."""
        return _recompute(self.network)


class DeepLatentEnergy(FeatureEnergy):
    r"""Features of v, coupled with real latents, under a squared norm.

    .. math:: E(v, h) = \sum_k \mathrm{ELU}(A x + a)_k^2, \quad x = (g(v) + h,\; h), \quad g(v) = B\, g_1(v) + b

    The features g(v) cost a pass through the network, and are computed once for all latents. E >= 0. Reference: Bao et
    al. 2020, section 5.2, and code; Bao et al. 2021.

    With ``reference_std`` the model tilts a normal distribution, as Xie et al. 2016 (arXiv 1602.03264) do:

    .. math:: p(v, h) \propto e^{-E(v, h)}\, N(v; 0, s^2 I)

    which adds :math:`\|v\|^2 / (2 s^2)` to E, and leaves p(h|v) as it is; ``latent_reference_std`` does the same for h,
    where E may become flat and latents leave for infinity. Multi-scale denoising asks for the score
    :math:`(\mathrm{E}[v|\tilde v] - \tilde v) / \sigma_0^2`: with s = sigma_0 the network learns the denoised image,
    and not to subtract the noise.

    Args:
        network: g_1, a module that maps v (B, *event) to features (B, network.out_dim), and says network.event_shape.
        h_dim: Number of latents m.
        head_dim: Rows of A; half as many as g_1 has features if not given, as published.
        visible_head: ``quadratic`` adds that head of :class:`DeepEnergy` on g_1(v), an energy of v alone; ``none``, as
            published, leaves all to the latents' head, which sees v through m numbers.
        reference_std: s; null, as published, for no such term.
        latent_reference_std: The same of h.

    Example:
        >>> import torch
        >>> from eblvm_lit.networks.mlp import MLP
        >>> deep = DeepLatentEnergy(network=MLP(sizes=[2, 8]), h_dim=3)
        >>> deep.energy(torch.zeros(5, 2), torch.zeros(7, 5, 3)).shape
        torch.Size([7, 5])
    """

    continuous = True

    def __init__(
        self,
        *,
        network: FeatureNetwork,
        h_dim: PositiveInt,
        head_dim: PositiveInt | None = None,
        visible_head: Literal["none", "quadratic"] = "none",
        reference_std: PositiveFloat | None = None,
        latent_reference_std: PositiveFloat | None = None,
    ) -> None:
        super().__init__()
        self.reference_std = reference_std
        self.latent_reference_std = latent_reference_std
        head_dim = network.out_dim // 2 if head_dim is None else head_dim
        self.event_shape = tuple(network.event_shape)
        self.h_dim = h_dim
        self.network = network
        self.f2h = nn.Linear(network.out_dim, h_dim)
        self.head = SquaredNormHead(in_dim=2 * h_dim, width=head_dim)
        self.visible_head = QuadraticHead(in_dim=network.out_dim) if visible_head == "quadratic" else None

    def memory_hints(self) -> list[str]:
        """Recomputed activations, where the network can do that."""
        return _recompute(self.network)

    def features(self, v: Tensor) -> Tensor:
        """g(v), shape (B, m), of v (B, *event); where E has terms of v alone, their sum in one more column."""
        of_network = self.network(v)
        features = self.f2h(of_network)
        alone = []
        if self.visible_head is not None:
            alone.append(self.visible_head(of_network))
        if self.reference_std is not None:
            alone.append(_reference(v, self.reference_std, len(self.event_shape)))
        if not alone:
            return features
        return torch.cat([at_least_float32(features), torch.stack(alone, 1).sum(1, keepdim=True)], dim=1)

    def at_features(self, features: Tensor) -> LatentEnergy:
        r"""A x + a is :math:`(A_1 g(v) + a) + (A_1 + A_2) h`: a product with h alone for every h."""
        of_sum, of_h = self.head.weight.chunk(2, dim=1)
        of_features = linear(features[:, : self.h_dim], of_sum, self.head.bias)
        weight = of_sum + of_h
        of_v = features[:, self.h_dim :].sum(1)  # no column, no term

        def energy(h: Tensor) -> Tensor:
            value = self.head.squared_norm(of_features + linear(h, weight)) + of_v
            std = self.latent_reference_std
            return value if std is None else value + _reference(h, std, 1)

        return energy


class DeepVectorEnergy(DeepLatentEnergy):
    r"""The deep energy of vectors, with residual blocks for a network.

    Its defaults are the published toy model's. Reference: Bao et al. 2021, code.

    Args:
        v_dim: Size of v.
        h_dim: Number of latents m.
        head_dim: Rows of A.
        widths: Width of each residual block of g_1.

    Example:
        >>> import torch
        >>> DeepVectorEnergy(v_dim=2, h_dim=10)(torch.zeros(5, 2), torch.zeros(5, 10)).shape
        torch.Size([5])
    """

    def __init__(
        self,
        *,
        v_dim: PositiveInt,
        h_dim: PositiveInt = 10,
        head_dim: PositiveInt = 100,
        widths: Sizes = (100, 100, 100),
    ) -> None:
        super().__init__(network=ResidualMLP(sizes=[v_dim, *widths]), h_dim=h_dim, head_dim=head_dim)
