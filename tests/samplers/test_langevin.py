"""Langevin sampling: moments, and what it can sample."""

import pytest
import torch

import eblvm_lit
from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
from eblvm_lit.errors import ConfigError
from eblvm_lit.samplers.gibbs import Gibbs
from eblvm_lit.samplers.langevin import Langevin


def test_langevin_samples_have_the_models_moments():
    """The Gaussian model's v ~ N(0, C) with C known, after enough small steps."""
    torch.manual_seed(0)
    model = GaussianLatentModel(v_dim=2, h_dim=2).double()
    v = Langevin(n_steps=400, step_size=0.05).sample(model, 4000, torch.Generator().manual_seed(0))
    exact = Gibbs(n_steps=200).sample(model, 4000, torch.Generator().manual_seed(1))
    torch.testing.assert_close(torch.cov(v.T), torch.cov(exact.T), rtol=0.1, atol=0.1)
    with pytest.raises(ConfigError, match="binary latents"):
        Langevin(n_steps=1, step_size=0.1).sample(_Binary(), 2, torch.Generator())


class _Binary(eblvm_lit.Energy):
    event_shape, h_dim, continuous = (2,), 3, False

    def __init__(self):
        super().__init__()
        self.W = torch.nn.Parameter(torch.zeros(2, 3))

    def energy(self, v, h):
        return (h * (v @ self.W)).sum(-1)


class _Fixed(eblvm_lit.VisibleEnergy):
    event_shape = (2,)

    def free_energy(self, v):
        return 0.5 * v.square().sum(-1)


def test_an_energy_without_parameters_is_sampled():
    v = Langevin(n_steps=300, step_size=0.05).sample(_Fixed(), 2000, torch.Generator().manual_seed(0))
    assert v.dtype == torch.float32
    assert v.std().item() == pytest.approx(1.0, abs=0.05)
