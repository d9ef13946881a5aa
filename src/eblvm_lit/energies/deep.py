"""Deep energies: an energy of v only, and joint energies of v and h without a tractable posterior or marginal."""

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

__all__ = ["DeepEnergy", "DeepLatentEnergy", "DeepVectorEnergy"]


def _reference(x: Tensor, std: float, n_axes: int) -> Tensor:
    """Compute the energy |x|^2 / (2 std^2) of the normal distribution N(0, std^2 I) at x (*B, *event), shape (*B,).

    ``n_axes`` is the number of axes of one event.
    """
    return at_least_float32(x).flatten(-n_axes).square().sum(-1) / (2 * std**2)


class DeepEnergy(VisibleEnergy):
    r"""A baseline deep energy without latents: a quadratic or squared-norm head on the features of a network.

    .. math:: F(v) = (w_1^\top f + b_1)(w_2^\top f + b_2) + w_3^\top (f \circ f) + b_3, \quad f = g_1(v)

    with the quadratic head (Li et al. 2019), or :math:`\sum_k \mathrm{ELU}(A f + a)_k^2` with the squared-norm head
    (Bao et al. 2020, code). On CIFAR10 this baseline has about as many parameters with the quadratic head as the
    latent-variable model that it is compared with, and three times as many with the squared-norm head.

    Args:
        network: g_1, a module that maps v (B, *event) to features (B, network.out_dim) and has the attribute
            ``event_shape``.
        head: The head on the features, ``quadratic`` or ``squared_norm``.
        head_dim: The number of rows of A in the squared-norm head; by default half the number of features.
        reference_std: The standard deviation s of the reference N(0, s^2 I) that the model tilts, which adds
            :math:`\|v\|^2 / (2 s^2)` to F; null for no reference.

    Raises:
        ConfigError: If head_dim is given for the quadratic head, which has none.

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
        """Compute the energy F(v), shape (B,), for v (B, *event)."""
        value = self.head(self.network(v))
        std = self.reference_std
        return value if std is None else value + _reference(v, std, len(self.event_shape))


class DeepLatentEnergy(FeatureEnergy):
    r"""A deep joint energy of v and real latents h: a squared-norm head on h and the features of v.

    .. math:: E(v, h) = \sum_k \mathrm{ELU}(A x + a)_k^2, \quad x = (g(v) + h,\; h), \quad g(v) = B\, g_1(v) + b

    The features g(v) cost one pass through the network and are computed once for all latents. E >= 0. Reference: Bao
    et al. 2020, section 5.2, and code; Bao et al. 2021.

    With ``reference_std`` the model tilts a normal reference distribution, as Xie et al. 2016 (arXiv 1602.03264) do:

    .. math:: p(v, h) \propto e^{-E(v, h)}\, N(v; 0, s^2 I)

    which adds :math:`\|v\|^2 / (2 s^2)` to E and leaves p(h|v) unchanged. ``latent_reference_std`` adds the same term
    for h; without it E may become flat in h, and samples of h may diverge. The score that multi-scale denoising fits is
    :math:`(\mathrm{E}[v|\tilde v] - \tilde v) / \sigma_0^2`. With s = sigma_0 the reference contributes
    :math:`-\tilde v / \sigma_0^2`, so that the network only has to learn the denoised image E[v|v~].

    Args:
        network: g_1, a module that maps v (B, *event) to features (B, network.out_dim) and has the attribute
            ``event_shape``.
        h_dim: The number of latents m.
        head_dim: The number of rows of A; by default half the number of features of g_1, as published.
        visible_head: ``quadratic`` adds the quadratic head of :class:`DeepEnergy` on g_1(v), a term that does not
            depend on h; ``none``, as published, uses only the head above, which sees v through the m numbers g(v).
        reference_std: The standard deviation s of the reference of v; null, as published, for no such term.
        latent_reference_std: The standard deviation of the reference of h; null, as published, for no such term.

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

    def features(self, v: Tensor) -> Tensor:
        """Compute the features g(v), shape (B, m), for v (B, *event).

        If E has terms that depend only on v, their sum is an additional last column, and the shape is (B, m + 1).
        """
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
        r"""Return the energy E(v, .) as a function of h, from the features of v.

        :math:`A x + a = (A_1 g(v) + a) + (A_1 + A_2) h`, so that each new h costs only one product, with h.
        """
        of_sum, of_h = self.head.weight.chunk(2, dim=1)
        of_features = linear(features[:, : self.h_dim], of_sum, self.head.bias)
        weight = of_sum + of_h
        # The last column of the features is the sum of the terms of E that depend only on v. If E has no such terms,
        # the features have no such column, and of_v is 0.
        of_v = features[:, self.h_dim :].sum(1)

        def energy(h: Tensor) -> Tensor:
            value = self.head.squared_norm(of_features + linear(h, weight)) + of_v
            std = self.latent_reference_std
            return value if std is None else value + _reference(h, std, 1)

        return energy


class DeepVectorEnergy(DeepLatentEnergy):
    r"""A deep joint energy of vectors v, whose feature network g_1 is a residual MLP.

    The defaults are the published toy model's. Reference: Bao et al. 2021, code.

    Args:
        v_dim: The size of v.
        h_dim: The number of latents m.
        head_dim: The number of rows of A.
        widths: The width of each residual block of g_1.

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
