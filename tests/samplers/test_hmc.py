"""Tests of Hamiltonian moves: the accepted fraction, reversibility, and the distributions that they leave invariant."""

import math

import torch

from eblvm_lit.samplers.hmc import HMC, MoveNoise
from helpers.models import F64, generator, normal


def quartic(x):
    """Compute U = (x^2 - 1)^2 + x / 2, summed over dimensions, which has two wells that are not normal."""
    return ((x.square() - 1).square() + 0.5 * x).sum(-1)


def slope(x):
    """Compute the derivative of the energy U that ``quartic`` computes."""
    return 4 * x * (x.square() - 1) + 0.5


def test_one_leapfrog_step_is_the_metropolis_adjusted_langevin_algorithm():
    x = 0.7 * normal(50, 3)
    noise = MoveNoise(normal(50, 3, seed=1), torch.zeros(50, dtype=F64))
    size = 0.4

    # the logarithm of the density N(start - eps^2 / 2 grad, eps^2 I)
    def log_proposal(end, start):
        return -(end - start + 0.5 * size**2 * slope(start)).square().sum(-1) / (2 * size**2)

    end = x - 0.5 * size**2 * slope(x) + size * noise.momentum
    log_ratio = quartic(x) - quartic(end) + log_proposal(x, end) - log_proposal(end, x)
    move = HMC(n_leapfrog=1).move(quartic, x, noise, size)
    torch.testing.assert_close(move.acceptance, log_ratio.exp().clamp(max=1))
    assert 0.01 < float(move.acceptance.mean()) < 0.99
    torch.testing.assert_close(move.x, end)  # the uniform numbers are 0, so that all moves are accepted


def test_leapfrog_steps_lead_back_when_the_momentum_is_reversed():
    """Check that leapfrog steps preserve volume and are reversible, as the acceptance rule assumes."""
    x = normal(20, 2)
    p = normal(20, 2, seed=1)
    steps = 5
    size = 0.05
    hmc = HMC(n_leapfrog=steps)
    taken = torch.zeros(20, dtype=F64)

    end = x
    momentum = p
    for _ in range(steps):
        momentum = momentum - 0.5 * size * slope(end)
        end = end + size * momentum
        momentum = momentum - 0.5 * size * slope(end)
    torch.testing.assert_close(hmc.move(quartic, x, MoveNoise(p, taken), size).x, end)
    torch.testing.assert_close(hmc.move(quartic, end, MoveNoise(-momentum, taken), size).x, x)


def test_moves_find_the_moments_of_a_distribution_that_is_not_normal():
    hmc = HMC(n_leapfrog=4)
    g = generator(2)
    axis = torch.linspace(-4, 4, 8001, dtype=F64)
    weight = (-quartic(axis[:, None])).softmax(0)
    mean = (weight * axis).sum()
    second = (weight * axis**2).sum()
    x = torch.randn(4000, 1, generator=g, dtype=F64)
    for _ in range(200):
        x = hmc.move(quartic, x, hmc.noise(x, g), 0.35).x
    error = ((weight * axis**4).sum() - second**2).sqrt() / math.sqrt(len(x))
    assert abs(x.mean() - mean) < 4 * (second - mean**2).sqrt() / math.sqrt(len(x))
    assert abs(x.square().mean() - second) < 4 * error


def test_a_proposal_that_is_not_finite_is_refused():
    x = torch.ones(3, 1, dtype=F64)
    noise = MoveNoise(torch.full((3, 1), 1e200, dtype=F64), torch.zeros(3, dtype=F64))
    move = HMC().move(quartic, x, noise, 1.0)
    assert torch.equal(move.x, x)
    assert torch.equal(move.acceptance, torch.zeros(3, dtype=F64))


def test_a_move_gives_the_energy_and_the_slope_where_it_ends():
    x = normal(50, 3)
    hmc = HMC(n_leapfrog=2)
    first = hmc.move(quartic, x, hmc.noise(x, generator(4)), 0.6)
    assert 0 < int((first.x == x).all(1).sum()) < 50  # some moves are rejected
    torch.testing.assert_close(first.energy, quartic(first.x))
    torch.testing.assert_close(first.slope, torch.func.grad(lambda x: quartic(x).sum())(first.x))
    noise = hmc.noise(x, generator(5))
    again, known = (hmc.move(quartic, first.x, noise, 0.6, here) for here in (None, (first.energy, first.slope)))
    assert torch.equal(again.x, known.x)


def test_autocast_rounds_the_slope_and_not_the_energies_by_which_moves_are_accepted():
    matrix = normal(64, 64).float()

    def energy(x):
        return (x @ matrix).square().sum(1)

    x = normal(50, 64, seed=1).float()
    hmc = HMC(n_leapfrog=2)
    noise = hmc.noise(x, generator(3))
    with torch.autocast("cpu", torch.bfloat16):
        rounded = energy(x)
        move = hmc.move(energy, x, noise, 0.02)
    assert not torch.equal(rounded, energy(x))
    torch.testing.assert_close(move.energy, energy(move.x))
    exact = hmc.move(energy, x, noise, 0.02)
    assert not torch.equal(move.x, exact.x)
    torch.testing.assert_close(move.x, exact.x, rtol=0, atol=0.1)
