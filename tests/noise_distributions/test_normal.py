"""Tests of noise distributions: their densities and samples against torch's, and fits to data."""

import logging

import pytest
import torch

from cases import NOISE_DISTRIBUTIONS, V_DIM
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.noise_distributions.normal import FittedNormal

NORMAL = [case for case in NOISE_DISTRIBUTIONS if not case.make().of_bits]
every_noise_distribution = pytest.mark.parametrize("noise_case", NORMAL, ids=str)


def skewed(n, d, seed=0):
    """Return correlated data far from the origin."""
    x = torch.randn(n, d, generator=keyed_generator(seed))
    return x @ torch.randn(d, d, generator=keyed_generator(seed + 1)) + torch.arange(1.0, d + 1)


@every_noise_distribution
def test_density_is_torchs_and_samples_have_that_density(noise_case, float64):
    p_n = noise_case.make()
    truth = noise_case.truth(p_n)
    y = skewed(7, V_DIM)
    torch.testing.assert_close(p_n.log_prob(y), truth.log_prob(y))
    # a sample is an affine map of standard normal noise: its offset is the mean, and its matrix gives the covariance
    origin = p_n.sample(torch.zeros(1, V_DIM))
    basis = p_n.sample(torch.eye(V_DIM))
    jacobian = (basis - origin).T
    torch.testing.assert_close(origin[0], truth.mean)
    torch.testing.assert_close(jacobian @ jacobian.T, truth.covariance_matrix)
    assert p_n.noise((3,), y, keyed_generator(0)).shape == (3, 7, V_DIM)


def test_a_fitted_normal_has_the_moments_of_the_data(float64):
    v = skewed(500, 4)
    p_n = FittedNormal()
    p_n.prepare((4,))
    p_n.fit(v.split(130))  # the data come in four batches, of which the last is smaller
    torch.testing.assert_close(p_n.mean, v.mean(0))
    covariance = p_n.axes @ torch.diag(p_n.std.square()) @ p_n.axes.T
    torch.testing.assert_close(covariance, v.T.cov(correction=0))
    # The test has four dimensions, because in two the matrix of eigenvectors may be symmetric, and a transposed matrix
    # would not be noticed.
    rows = p_n.sample(torch.eye(4)) - p_n.sample(torch.zeros(4, 4))
    torch.testing.assert_close(rows.T @ rows, covariance)
    p_n.fit([v + 1])  # A distribution that is already fitted, for example by a checkpoint, is not fitted again.
    torch.testing.assert_close(p_n.mean, v.mean(0))


def test_images_and_vectors_have_the_same_density_and_samples(float64):
    v = skewed(50, 6)
    flat = FittedNormal()
    image = FittedNormal()
    for p_n, shape in ((flat, (6,)), (image, (1, 2, 3))):
        p_n.prepare(shape)
        p_n.fit([v.view(-1, *shape)])
    y = skewed(5, 6, seed=9)
    torch.testing.assert_close(image.log_prob(y.view(-1, 1, 2, 3)), flat.log_prob(y))
    noise = flat.noise((), y, keyed_generator(0))
    torch.testing.assert_close(image.sample(noise.view(-1, 1, 2, 3)).flatten(1), flat.sample(noise))


def test_directions_without_variance_get_min_std_and_the_log_says_so(float64, caplog):
    v = skewed(200, 3)
    # Add a constant pixel, and a copy of the first pixel.
    v = torch.cat([v, torch.full((200, 1), 0.5), v[:, :1]], dim=1)
    p_n = FittedNormal(min_std=0.05)
    p_n.prepare((5,))
    with caplog.at_level(logging.INFO):
        p_n.fit([v])
    assert "2 of 5 directions are given min_std=0.05" in caplog.text
    torch.testing.assert_close(p_n.std[:2], torch.full((2,), 0.05))
    covariance = p_n.axes @ torch.diag(p_n.std.square()) @ p_n.axes.T
    dead = torch.eye(5)[3]
    copied = (torch.eye(5)[0] - torch.eye(5)[4]) / 2**0.5
    floor = 0.05**2 * (dead.outer(dead) + copied.outer(copied))
    # All directions except these two keep the variance of the data.
    torch.testing.assert_close(covariance, v.T.cov(correction=0) + floor)
    assert p_n.log_prob(v).isfinite().all()
