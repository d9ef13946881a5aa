"""The energies of bi-level doubly variational learning (BiDVL), given by spectrally normalised networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn.functional import softplus

from eblvm_lit.core.ranges import Sizes
from eblvm_lit.core.tensors import at_least_float32
from eblvm_lit.energies.base import FeatureEnergy, LatentEnergy, VisibleEnergy
from eblvm_lit.networks.base import FeatureNetwork
from eblvm_lit.networks.layers import linear_layers, normal_start, spectrally_normalised, xavier_start

__all__ = ["JointSpectralEnergy", "SpectralEnergy"]

Output = Literal["softplus", "tanh", "sigmoid", "identity"]
OUTPUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "softplus": softplus,
    "tanh": lambda x: torch.tanh(-x),
    "sigmoid": torch.sigmoid,
    "identity": lambda x: x,
}
DECREASING = ("tanh",)  # the monotonically decreasing output functions; the others are increasing


def _layers(sizes: Sequence[int]) -> nn.Sequential:
    """Build linear layers with leaky ReLUs between them."""
    return nn.Sequential(*linear_layers(sizes, partial(nn.LeakyReLU, 0.1))[:-1])


class SpectralEnergy(VisibleEnergy):
    r"""The energy of v given by a spectrally normalised network with one output and an output function.

    .. math:: F(v) = a(c(g(v))), \quad a(x) = \log(1 + e^x),\; \tanh(-x),\; 1 / (1 + e^{-x}) \;\text{or}\; x

    This is the decoupled marginal energy E'(v) of doubly variational learning (Kan et al. 2022, code). The published
    convolutional networks have a head c with one hidden layer and a = softplus; the residual ones have a linear head
    and a = identity.

    Args:
        network: g, a module that maps v (B, *event) to features (B, network.out_dim) and has the attribute
            ``event_shape``.
        output: The output function a.
        hidden: Whether the head c has a hidden layer. If so, the layer is as wide as g's features, and the head is
            initialised like the convolutions, from N(0, 0.02^2); else c is linear, and its initialisation is uniform.

    Example:
        >>> from eblvm_lit.networks.bidvl_conv import SpectralConv
        >>> energy = SpectralEnergy(network=SpectralConv(v_shape=[1, 8, 8], width=2))
        >>> energy(torch.zeros(5, 1, 8, 8)).shape
        torch.Size([5])
    """

    smooth = False  # the networks have (leaky) ReLUs

    def __init__(self, *, network: FeatureNetwork, output: Output = "softplus", hidden: bool = True) -> None:
        super().__init__()
        self.event_shape = tuple(network.event_shape)
        self.network = network
        self.output = output
        n = network.out_dim
        head = normal_start(_layers([n, n, 1])) if hidden else xavier_start(nn.Linear(n, 1))
        self.head = spectrally_normalised(head)

    def free_energy(self, v: Tensor) -> Tensor:
        """Compute the energy F(v), shape (B,), for v (B, *event)."""
        return OUTPUTS[self.output](at_least_float32(self.head(self.network(v))).squeeze(-1))

    def ranking_energy(self, v: Tensor) -> Tensor:
        """Compute the head's output, shape (B,), with its sign changed if the energy decreases with the output.

        The result ranks examples as F does, but without ties. F has ties because the output functions saturate: in
        float32, tanh rounds to 1 from 9.1 on.
        """
        x = at_least_float32(self.head(self.network(v))).squeeze(-1)
        return -x if self.output in DECREASING else x


class JointSpectralEnergy(FeatureEnergy):
    r"""The joint energy of BiDVL's ablation without decoupling: a spectrally normalised head on features of v and h.

    .. math:: E(v, h) = a(c(g_v(v), g_h(h)))

    The head c sees the concatenated features. Reference: Kan et al. 2022, ablation, and code (32 pixels).

    Args:
        network: g_v, a module that maps v (B, *event) to features (B, network.out_dim) and has the attribute
            ``event_shape``.
        h_dim: The number of latents.
        h_widths: The width of each layer of g_h.
        output: The output function a; see :class:`SpectralEnergy`.

    Example:
        >>> from eblvm_lit.networks.bidvl_conv import SpectralConv
        >>> network = SpectralConv(v_shape=[1, 8, 8], width=2)
        >>> energy = JointSpectralEnergy(network=network, h_dim=3, h_widths=[4, 4])
        >>> energy(torch.zeros(5, 1, 8, 8), torch.zeros(7, 5, 3)).shape
        torch.Size([7, 5])
    """

    continuous = True

    def __init__(
        self,
        *,
        network: FeatureNetwork,
        h_dim: PositiveInt = 100,
        h_widths: Sizes = (64, 64, 128, 128, 256, 256, 512, 512),
        output: Output = "softplus",
    ) -> None:
        super().__init__()
        self.event_shape = tuple(network.event_shape)
        self.h_dim = h_dim
        self.output = output
        self.network = network
        n = network.out_dim + h_widths[-1]
        self.h_network = spectrally_normalised(normal_start(_layers([h_dim, *h_widths])))
        self.head = spectrally_normalised(normal_start(_layers([n, n, 1])))

    def energy_of_features(self, features: Tensor, h: Tensor) -> Tensor:
        """Compute the energy E(v, h), shape (*L, B), from features g_v(v) (B, network.out_dim) and h (*L, B, H)."""
        of_h = self.h_network(h)
        both = torch.cat([features.expand(*of_h.shape[:-1], -1), of_h], dim=-1)
        return OUTPUTS[self.output](at_least_float32(self.head(both)).squeeze(-1))

    def features(self, v: Tensor) -> Tensor:
        """Compute the features g_v(v) of v, shape (B, network.out_dim)."""
        return self.network(v)

    def at_features(self, features: Tensor) -> LatentEnergy:
        """Return the energy E(v, .) as a function of h, from the features g_v(v)."""
        return partial(self.energy_of_features, features)
