r"""Deep energies whose latents are independent of each other given v, so that F(v) and p(h|v) have closed forms."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn.functional import softplus

from eblvm_lit.core.tensors import at_least_float32
from eblvm_lit.energies.base import ExactLatentEnergy
from eblvm_lit.networks.base import FeatureNetwork
from eblvm_lit.networks.heads import QuadraticHead

__all__ = ["DeepHarmonium", "Harmonium", "bounded"]

LARGEST = 4.0  # the bound of the values of g in deep harmoniums


def bounded(x: Tensor) -> Tensor:
    r"""Compute :math:`4 \tanh(x / 4)`, which is near x for small x and bounds g in deep harmoniums.

    F contains :math:`-\tfrac12 \lambda \|g\|^2`. If g grew without a bound, F could fall without a bound far from the
    data: without the tanh, the probability flow of a model of MNIST diverged for one of 700 samples.

    Example:
        >>> bounded(torch.tensor([0.1, 100.0]))
        tensor([0.1000, 4.0000])
    """
    return LARGEST * (x / LARGEST).tanh()


class Harmonium(ExactLatentEnergy):
    r"""The base class of energies whose latents are coupled linearly to functions of v, and not to each other.

    .. math:: E(v, h) = e(v) - \lambda(v) h^\top g(v) + r(h, v)

    For real latents :math:`r = \tfrac12 \lambda \|h\|^2 - \tfrac m2 \log \tfrac{\lambda}{2\pi}`, so that p(h|v) is the
    normal distribution :math:`N(g(v), I / \lambda(v))` and :math:`F(v) = e(v) - \tfrac12 \lambda(v) \|g(v)\|^2`. For
    binary latents r = 0, so that each latent is 1 with probability :math:`\mathrm{sigmoid}(\lambda(v) g_k(v))` and
    :math:`F(v) = e(v) - \sum_k \log(1 + e^{\lambda(v) g_k(v)})`. All of e, g and lambda may be deep networks. A
    restricted Boltzmann machine has linear g, constant lambda, and a linear or quadratic e. Reference: Welling,
    Rosen-Zvi and Hinton 2004, "Exponential family harmoniums with an application to information retrieval".

    A subclass sets the attributes ``event_shape``, ``h_dim`` and ``continuous``, and computes the functions.
    """

    @abstractmethod
    def terms(self, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute e(v), shape (B,), g(v), shape (B, m), and lambda(v) > 0, shape (B,), for v (B, *event)."""

    def energy(self, v: Tensor, h: Tensor) -> Tensor:
        """Compute E(v, h), shape (*L, B), for v (B, *event) and h (*L, B, m)."""
        e, g, precision = self.terms(v)
        linear = e - precision * (h * g).sum(-1)
        if not self.continuous:
            return linear
        return linear + 0.5 * precision * h.square().sum(-1) - 0.5 * self.h_dim * (precision / (2 * math.pi)).log()

    def free_energy(self, v: Tensor) -> Tensor:
        """Compute the free energy F(v), shape (B,), for v (B, *event)."""
        e, g, precision = self.terms(v)
        if self.continuous:
            return e - 0.5 * precision * g.square().sum(1)
        return e - softplus(precision.unsqueeze(1) * g).sum(1)

    def latent_mean(self, v: Tensor) -> Tensor:
        """Compute the posterior mean E[h|v], shape (B, m): g for real latents, sigmoid(lambda g) for bits."""
        _, g, precision = self.terms(v)
        return g if self.continuous else (precision.unsqueeze(1) * g).sigmoid()


class DeepHarmonium(Harmonium):
    r"""A harmonium of a network's features f(v): e is a quadratic head of f, and lambda = 1.

    .. math:: g(v) = 4 \tanh((A f(v) + a) / 4)

    Args:
        network: The network, which maps v (B, *event) to features (B, network.out_dim) and has the attribute
            ``event_shape``.
        h_dim: The number of latents m.
        continuous: Whether the latents are real; False for bits.

    Example:
        >>> from eblvm_lit.networks.mlp import MLP
        >>> energy = DeepHarmonium(network=MLP(sizes=[2, 8]), h_dim=3)
        >>> energy.free_energy(torch.zeros(5, 2)).shape, energy.latent_mean(torch.zeros(5, 2)).shape
        (torch.Size([5]), torch.Size([5, 3]))
    """

    def __init__(self, *, network: FeatureNetwork, h_dim: PositiveInt, continuous: bool = True) -> None:
        super().__init__()
        self.event_shape = tuple(network.event_shape)
        self.h_dim = h_dim
        self.continuous = continuous
        self.network = network
        self.head = QuadraticHead(in_dim=network.out_dim)
        self.couple = nn.Linear(network.out_dim, h_dim)

    def terms(self, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute e(v), shape (B,), g(v), shape (B, m), and lambda = 1, shape (B,), for v (B, *event)."""
        features = self.network(v)
        e = self.head(features)
        return e, bounded(at_least_float32(self.couple(features))), torch.ones_like(e)
