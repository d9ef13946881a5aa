"""Tests of the method: the scale of the data is the best one, and a constant energy has a known loss."""

import math

import torch
from my_package.discrepancy import EnergyDiscrepancy

from eblvm_lit.energies.grbm import GRBM
from eblvm_lit.optimizers.adam import Adam


def mean_loss(log_std):
    """Return the loss of data N(0, 1) for a model N(0, std^2), which is a GRBM without coupling."""
    energy = GRBM(v_dim=1, h_dim=1)
    with torch.no_grad():
        for parameter in (energy.W, energy.b, energy.c):
            parameter.zero_()
        energy.log_std.fill_(log_std)
    method = EnergyDiscrepancy(energy=energy, optimizer=Adam(lr=0.1), noise_std=0.5, n_negatives=64)
    v = torch.randn(4000, 1, generator=torch.Generator().manual_seed(0))
    return method.validation_loss(v, torch.Generator().manual_seed(1)).mean().item()


def test_the_scale_of_the_data_is_best():
    assert mean_loss(0.0) < min(mean_loss(-0.4), mean_loss(0.4)) - 0.01


def test_a_constant_energy_has_a_known_loss():
    assert math.isclose(mean_loss(20.0), math.log(65 / 64), rel_tol=1e-4)
