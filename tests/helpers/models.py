"""Small models with random parameters in float64."""

import math

import torch

import eblvm_lit as eb
from helpers.stand_in import StandIn

F64 = torch.float64


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=generator(seed), dtype=F64)


def random_grbm(v_dim, h_dim, parametrisation="code", scale=1.0, seed=3):
    """Build a GRBM whose weights are of order one, so that its latents depend on one another."""
    model = eb.GRBM(v_dim=v_dim, h_dim=h_dim, parametrisation=parametrisation).double().requires_grad_(False)
    for i, (p, size) in enumerate(((model.W, 0.8), (model.b, 0.7), (model.c, 0.7), (model.log_std, 0.3))):
        p.copy_(scale * size * normal(*p.shape, seed=seed + i))
    return model


def random_gaussian_model(v_dim=3, h_dim=4):
    model = eb.GaussianLatentModel(v_dim=v_dim, h_dim=h_dim, weight_scale=1.5).double().requires_grad_(False)
    for i, p in enumerate((model.b, model.c, model.log_std)):
        p.copy_(0.3 * normal(*p.shape, seed=i))
    return model


def method_of(energy=None, posterior=None):
    method = StandIn()
    method.energy = energy
    method.posterior = posterior
    return method


class LatentOnly(eb.Energy):
    """An energy without a tractable marginal."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.event_shape = model.event_shape
        self.h_dim = model.h_dim

    def energy(self, v, h):
        return self.model.energy(v, h)


class Confined(eb.VisibleEnergy):
    """A deep energy of points in the plane plus a weak quadratic term, so that log Z is finite."""

    def __init__(self, seed=0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.deep = eb.DeepEnergy(network=eb.MLP(sizes=[2, 16, 8]), head="squared_norm")
        for p in self.deep.parameters():
            p.data.mul_(2)
        self.event_shape = (2,)
        self.double().requires_grad_(False)

    def free_energy(self, v):
        return self.deep.free_energy(v) + 0.1 * v.square().sum(-1)


def exact_moments(model):
    """Compute the mean and covariance of (v, h) of a GRBM by enumeration of all h.

    Given h, v is normal with a known mean and variance.
    """
    h = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=F64)] * model.h_dim)
    std = model.visible_std()
    pull = h @ model.coupling().T
    weight = (h @ model.c + pull @ model.b + 0.5 * (std * pull).square().sum(-1)).softmax(0)
    joint = torch.cat([model.b + std.square() * pull, h], dim=1)
    mean = weight @ joint
    noise = torch.cat([std.square(), torch.zeros(model.h_dim, dtype=F64)]).diag()
    return mean, (joint - mean).T @ (weight[:, None] * (joint - mean)) + noise


def check_moments(samples, mean, covariance):
    """Check that all means and covariances of samples are within five standard errors of the expected ones."""
    n = len(samples)
    centred = samples - mean
    z_mean = centred.mean(0) / (covariance.diagonal() / n).sqrt()
    products = centred[:, :, None] * centred[:, None, :]
    z_covariance = (products.mean(0) - covariance) / (products.std(0) / math.sqrt(n))
    assert z_mean.abs().max() < 5
    assert z_covariance.abs().max() < 5
