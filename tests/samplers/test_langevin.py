"""Tests of Langevin sampling: its moments, and the energies that it can sample."""

import pytest
import torch

import eblvm_lit as eb
from helpers.models import LatentOnly, random_grbm


def test_langevin_samples_have_the_models_moments():
    """Compare samples after many small steps with the Gaussian model's v ~ N(0, C), where C is known."""
    torch.manual_seed(0)
    model = eb.GaussianLatentModel(v_dim=2, h_dim=2).double()
    v = eb.Langevin(n_steps=400, step_size=0.05).sample(model, 4000, torch.Generator().manual_seed(0))
    torch.testing.assert_close(torch.cov(v.T), model.marginal().covariance_matrix, rtol=0.1, atol=0.1)
    binary = LatentOnly(random_grbm(2, 3))
    binary.continuous = False
    with pytest.raises(eb.ConfigError, match="joint real latents"):
        eb.Langevin(n_steps=1, step_size=0.1).sample(binary, 2, torch.Generator())


class _Fixed(eb.VisibleEnergy):
    event_shape = (2,)

    def free_energy(self, v):
        return 0.5 * v.square().sum(-1)


def test_an_energy_without_parameters_is_sampled():
    v = eb.Langevin(n_steps=150, step_size=0.05).sample(_Fixed(), 2000, torch.Generator().manual_seed(0))
    assert v.dtype == torch.float32
    assert v.std().item() == pytest.approx(1.0, abs=0.05)
