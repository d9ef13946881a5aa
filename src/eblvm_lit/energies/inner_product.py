r"""Energies at every noise level that contain the inner product of a noised image and the output image of a network.

The gradient of these energies denoises the image. Their visible vector :math:`x = (y, c)` is the scaled image and the
scaled level of :meth:`~eblvm_lit.core.noise_levels.NoisedNormal.inputs`, so that they can be the inner energies of
:class:`~eblvm_lit.energies.noise_conditional.NoiseConditionalFreeEnergy` and
:class:`~eblvm_lit.energies.noise_conditional.NoiseConditionalEnergy`.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn

from eblvm_lit.core.noise_levels import split_level
from eblvm_lit.core.tensors import at_least_float32
from eblvm_lit.energies.base import VisibleEnergy
from eblvm_lit.energies.deep import DeepLatentEnergy
from eblvm_lit.energies.harmonium import Harmonium, bounded
from eblvm_lit.networks.base import DenoisingNetwork, FeatureNetwork

__all__ = ["InnerProductEnergy", "InnerProductHarmonium", "InnerProductHead", "InnerProductLatentEnergy"]


class InnerProductHead(nn.Module):
    r"""The scaled inner product of a network's input and output image, plus a linear function of its features.

    .. math:: -\tfrac12 e^{-2c} \langle y, f \rangle + \sqrt d\, a^\top g,
        \quad e^{-2c} = s / \sqrt t

    y are d numbers, f is the network's image and g are its features. The factor :math:`s / \sqrt t` is the one that
    preconditions denoising by the network f: where f is homogeneous of degree 1 and a gradient, the gradient of the
    first term with respect to the noised image, times :math:`\sqrt t`, is
    :math:`-s f / \sqrt{s^2 + t}` (Karras et al. 2022, arXiv 2206.00364). The second term is free, so that the
    derivative in the level need not follow from that in the image. It starts at zero.

    Args:
        in_dim: The number of features g.

    Example:
        >>> head = InnerProductHead(in_dim=3)
        >>> x = torch.tensor([[1.0, 2.0, 0.0]])  # y = (1, 2), c = 0
        >>> head(x, torch.tensor([[1.0, 1.0]]), torch.zeros(1, 3))
        tensor([-1.5000], grad_fn=<AddBackward0>)
    """

    def __init__(self, *, in_dim: int) -> None:
        super().__init__()
        self.free = nn.Linear(in_dim, 1, bias=False)
        nn.init.zeros_(self.free.weight)

    def forward(self, x: Tensor, f: Tensor, g: Tensor) -> Tensor:
        """Compute the energy, shape (B,), for inputs x (B, d + 1), images f (B, d) and features g (B, in_dim)."""
        y, c = split_level(x)
        # Sums over all pixels are too inexact in half precision, so autocast is switched off.
        with torch.autocast(x.device.type, enabled=False):
            free = self.free(at_least_float32(g)).squeeze(1)
            return -0.5 * (-2 * c).exp() * (y * at_least_float32(f)).sum(1) + math.sqrt(y.shape[1]) * free


class InnerProductEnergy(VisibleEnergy):
    r"""An energy F'(x) without latents, which :class:`InnerProductHead` computes from the outputs f and g of a network.

    .. math:: F'(y, c) = -\tfrac12 e^{-2c} \langle y, f(y, c) \rangle + \sqrt d\, a^\top g(y, c)

    Reference for the inner product: Guth, Kadkhodaie and Simoncelli 2025, arXiv 2506.05310.

    Args:
        network: The network, which maps x (B, d + 1) to the pair of f (B, d) and g (B, out_dim).

    Example:
        >>> from eblvm_lit.networks.noise_conditional_mixer import NoiseConditionalMixer
        >>> network = NoiseConditionalMixer(v_shape=[1, 8, 8], width=6, dense_width=5, fine_width=4)
        >>> energy = InnerProductEnergy(network=network)
        >>> energy(torch.zeros(5, 65)).shape
        torch.Size([5])
    """

    def __init__(self, *, network: DenoisingNetwork) -> None:
        super().__init__()
        self.event_shape = tuple(network.event_shape)
        self.network = network
        self.head = InnerProductHead(in_dim=network.out_dim)

    def free_energy(self, v: Tensor) -> Tensor:
        """Compute the energy F'(x), shape (B,), for scaled noised data followed by their scaled level, x (B, d + 1)."""
        return self.head(v, *self.network(v))


class InnerProductHarmonium(Harmonium):
    r"""A harmonium whose e is the energy F' of :class:`InnerProductEnergy`, and whose g depends on its features.

    .. math:: E'(x, h) = F'(x) - \lambda h^\top 4 \tanh \tfrac14 (A g(x) + a) + r(h, x), \quad
        \lambda = \sqrt d\, e^{-2c}

    The factor :math:`e^{-2c} = s / \sqrt t` is that of the inner product: the less noise an image has, the more exactly
    it determines its latents, whose posterior has the variance 1 / lambda. A starts at a tenth of its usual size and a
    at zero, so that the energy starts near that of its reference.

    Args:
        network: The network, as in :class:`InnerProductEnergy`.
        h_dim: The number of latents m.
        continuous: Whether the latents are real; False for bits.

    Example:
        >>> from eblvm_lit.networks.noise_conditional_mixer import NoiseConditionalMixer
        >>> network = NoiseConditionalMixer(v_shape=[1, 8, 8], width=6, dense_width=5, fine_width=4)
        >>> InnerProductHarmonium(network=network, h_dim=3).latent_mean(torch.zeros(5, 65)).shape
        torch.Size([5, 3])
    """

    def __init__(self, *, network: DenoisingNetwork, h_dim: PositiveInt, continuous: bool = True) -> None:
        super().__init__()
        self.event_shape = tuple(network.event_shape)
        self.h_dim = h_dim
        self.continuous = continuous
        self.network = network
        self.head = InnerProductHead(in_dim=network.out_dim)
        self.couple = nn.Linear(network.out_dim, h_dim)
        with torch.no_grad():
            self.couple.weight.mul_(0.1)
            self.couple.bias.zero_()

    def terms(self, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute F'(x) (B,), the mean of h (B, m) and its precision lambda (B,), for inputs x (B, d + 1)."""
        f, features = self.network(v)
        y, c = split_level(v)
        with torch.autocast(v.device.type, enabled=False):
            coupled = bounded(self.couple(at_least_float32(features)))
            return self.head(v, f, features), coupled, math.sqrt(y.shape[1]) * (-2 * c).exp()


class InnerProductLatentEnergy(DeepLatentEnergy):
    r"""The energy E'(x, h) of a denoising network and of latents h, which interact with the network's features.

    .. math:: E'(x, h) = F'(x) + \sum_k \mathrm{ELU}(A (B g + b + h,\; h) + a)_k^2 + \frac{\|h\|^2}{2 s_h^2}

    F' is the energy of :class:`InnerProductEnergy` with the same network. The sum over k is the one
    in :class:`DeepLatentEnergy`.

    Args:
        network: The network, as in :class:`InnerProductEnergy`.
        h_dim: The number of latents m.
        head_dim: The number of rows of A; by default half the number of features g.
        latent_reference_std: The standard deviation s_h of the reference of h; null for no such term.

    Example:
        >>> from eblvm_lit.networks.noise_conditional_mixer import NoiseConditionalMixer
        >>> network = NoiseConditionalMixer(v_shape=[1, 8, 8], width=6, dense_width=5, fine_width=4)
        >>> InnerProductLatentEnergy(network=network, h_dim=3)(torch.zeros(5, 65), torch.zeros(7, 5, 3)).shape
        torch.Size([7, 5])
    """

    def __init__(
        self,
        *,
        network: DenoisingNetwork,
        h_dim: PositiveInt,
        head_dim: PositiveInt | None = None,
        latent_reference_std: PositiveFloat | None = 1.0,
    ) -> None:
        # The base class takes a FeatureNetwork, but only stores the network and reads its sizes. Only the method
        # `features` below calls the network.
        features = cast(FeatureNetwork, network)
        super().__init__(network=features, h_dim=h_dim, head_dim=head_dim, latent_reference_std=latent_reference_std)
        self.inner_product = InnerProductHead(in_dim=network.out_dim)

    def features(self, v: Tensor) -> Tensor:
        """Compute the features B g + b and, as the last column, F'(x), shape (B, m + 1), for inputs x (B, d + 1)."""
        f, g = self.network(v)
        of_v = self.inner_product(v, f, g)
        return torch.cat([at_least_float32(self.f2h(g)), of_v.unsqueeze(1)], dim=1)
