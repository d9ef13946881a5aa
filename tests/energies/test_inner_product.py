"""Tests of energies whose gradient denoises: their formulas, derivatives, and values before training."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import elu

from cases import H_DIM, randomise
from eblvm_lit.core.noise_levels import NoiseRange, join_level, split_level
from eblvm_lit.energies.inner_product import InnerProductEnergy, InnerProductHead, InnerProductLatentEnergy
from eblvm_lit.energies.noise_conditional import NoiseConditionalEnergy, NoiseConditionalFreeEnergy
from eblvm_lit.networks.noise_conditional_mixer import NoiseConditionalMixer

pytestmark = pytest.mark.usefixtures("float64")

RANGE = NoiseRange(mean=0.3, std=1.4)
SHAPE = [1, 4, 4]
N = 16


class Linear(nn.Module):
    """A network with the image f(y, c) = S y for a symmetric matrix S, and with the features (sin c, 1).

    Its image is a homogeneous function of y.
    """

    event_shape = (N + 1,)
    out_dim = 2

    def __init__(self):
        super().__init__()
        matrix = torch.randn(N, N)
        self.symmetric = nn.Parameter(matrix + matrix.T)

    def forward(self, x):
        y, c = split_level(x)
        return y @ self.symmetric, torch.stack([c.sin(), torch.ones_like(c)], 1)


def mixer():
    return NoiseConditionalMixer(v_shape=SHAPE, width=5, dense_width=7, n_rounds=2, n_kept=3, fine_width=4)


def examples():
    return join_level(0.3 + torch.randn(6, N), torch.linspace(-4.0, 3.0, 6))


def every_level(inner):
    return NoiseConditionalFreeEnergy(energy=inner, v_shape=SHAPE, noise_range=RANGE)


def test_the_gradient_of_a_homogeneous_network_denoises_and_the_free_term_moves_only_the_level():
    inner = InnerProductEnergy(network=Linear())
    with torch.no_grad():
        inner.head.free.weight.copy_(torch.tensor([[0.7, -0.2]]))
    energy = every_level(inner)
    w = examples()
    v, log_level = split_level(w)
    t = log_level.exp().unsqueeze(1)
    std = (1.4**2 + t).sqrt()
    y = (v - 0.3) / std
    f = y @ inner.network.symmetric
    slope = split_level(-energy.score(w))[0]
    torch.testing.assert_close(t.sqrt() * slope, t.sqrt() * (v - 0.3) / std**2 - 1.4 / std * f)
    c = (log_level - math.log(1.4**2)) / 4
    free = 4 * (0.7 * c.sin() - 0.2)  # the term of the features: the square root of 16 pixels, times 0.7 sin c - 0.2
    expected = energy.reference.energy(w) - 1.4 / (2 * t[:, 0].sqrt()) * (y * f).sum(1) + free
    torch.testing.assert_close(energy.free_energy(w), expected)


def test_derivatives_are_those_of_finite_differences():
    energy = randomise(every_level(InnerProductEnergy(network=mixer())), 0.4)
    w = examples()
    slope = -energy.score(w)
    for along in (torch.eye(N + 1)[-1], torch.randn(N + 1)):  # the direction of the level, and a random direction
        step = 1e-5 * along
        with torch.no_grad():
            expected = (energy.free_energy(w + step) - energy.free_energy(w - step)) / 2e-5
        torch.testing.assert_close(slope @ along, expected, rtol=1e-5, atol=1e-5)
    assert slope[:, -1].abs().min() > 1e-3


def test_training_starts_at_the_energy_of_noised_normal_data():
    energy = every_level(InnerProductEnergy(network=mixer()))
    w = examples()
    torch.testing.assert_close(energy.free_energy(w), energy.reference.energy(w))


def test_latents_couple_with_the_features_under_a_squared_norm():
    inner = InnerProductLatentEnergy(network=mixer(), h_dim=H_DIM, head_dim=6, latent_reference_std=0.8)
    randomise(inner, 0.2)
    energy = NoiseConditionalEnergy(energy=inner, v_shape=SHAPE, noise_range=RANGE)
    w = examples()
    h = torch.randn(5, 6, H_DIM)
    x = energy.reference.inputs(w)
    f, g = inner.network(x)
    of_x = inner.f2h(g)
    of_head = elu(torch.cat([of_x + h, h], -1) @ inner.head.weight.T + inner.head.bias).square().sum(-1)
    alone = -0.5 * (-2 * x[:, -1]).exp() * (x[:, :-1] * f).sum(1) + 4 * inner.inner_product.free(g).squeeze(1)
    expected = energy.reference.energy(w) + alone + of_head + h.square().sum(-1) / (2 * 0.8**2)
    torch.testing.assert_close(energy.energy(w, h), expected)
    without = InnerProductLatentEnergy(network=mixer(), h_dim=H_DIM, latent_reference_std=None)
    assert without.energy(x, h).shape == (5, 6)


def test_sums_over_pixels_keep_float32_under_bfloat16():
    head = randomise(InnerProductHead(in_dim=300)).float()
    x = torch.randn(5, N + 1).float()
    f = torch.randn(5, N).bfloat16()
    g = torch.randn(5, 300).float()
    expected = -0.5 * (-2 * x[:, -1]).exp() * (x[:, :-1] * f.float()).sum(1) + 4 * g @ head.free.weight[0]
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(head(x, f, g), expected, rtol=1e-5, atol=1e-4)
