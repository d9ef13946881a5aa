"""Tests of noise-contrastive estimation and of its variational form."""

import math
from contextlib import nullcontext

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

import eblvm_lit as eb
from cases import (
    H_DIM,
    NOISE_DISTRIBUTIONS,
    SUMMED,
    V_DIM,
    binary,
    enumerated_free_energy,
    make_binary,
    make_fitted_bernoulli,
    make_fitted_normal,
    randomise,
)
from eblvm_lit.core.functional import plain_autograd
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.noise_distributions.normal import StandardNormal
from helpers import iterating

NORMAL = [case for case in NOISE_DISTRIBUTIONS if not case.make().of_bits]
REAL = [case for case in SUMMED if not case.binary_visible]
every_noise_distribution = pytest.mark.parametrize("noise_case", NORMAL, ids=str)
every_energy = pytest.mark.parametrize("energy_case", REAL, ids=str)
every_backend = pytest.mark.parametrize("backend", [nullcontext, plain_autograd])


def nce(energy, p_n=None, **options):
    return eb.NCE(
        energy=energy, noise_distribution=p_n or StandardNormal(), optimizer=eb.SGD(lr=0.1), seed=1, **options
    )


def terms_of(method, v, noise):
    """Return both terms of the loss at the method's current parameters."""
    return method.terms(iterating.live(method), v, noise)


@every_energy
@pytest.mark.parametrize("nu", [1, 3])
def test_loss_is_the_cross_entropy_of_a_classifier(energy_case, nu, float64):
    energy = energy_case.make()
    v = torch.randn(6, V_DIM)
    p_n = make_fitted_normal()
    method = nce(energy, p_n, nu=nu)
    with torch.no_grad():
        method.model.log_z.fill_(0.7)
    noise = method.noise(v, keyed_generator(3))
    x = torch.cat([v, p_n.sample(noise["noise_distribution"].flatten(0, 1))])
    logits = -enumerated_free_energy(energy_case, energy, x) - 0.7 - p_n.log_prob(x) - math.log(nu)
    labels = (torch.arange(len(x)) < 6).double()
    expected = binary_cross_entropy_with_logits(logits, labels, reduction="none")
    expected = expected[:6] + expected[6:].view(nu, 6).sum(0)
    assert logits.abs().max() > 0.5
    (found,) = iterating.found(method, iterating.start(method), v, {"model": noise})["model"]
    torch.testing.assert_close(found.loss, expected.mean().detach())
    torch.testing.assert_close(method.validation_loss(v, keyed_generator(3)), expected)


@pytest.mark.parametrize("nu", [1, 3])
@every_noise_distribution
def test_the_minimum_is_where_the_model_has_the_density_of_the_data_and_log_z_is_true(noise_case, nu, float64):
    energy = randomise(eb.GRBM(v_dim=V_DIM, h_dim=H_DIM))
    p_n = noise_case.make()
    method = nce(energy, p_n, nu=nu)
    with torch.no_grad():
        energy.log_std.clamp_(-0.5, 0.3)
        method.model.log_z.copy_(energy.log_partition())
    axis = torch.linspace(-20, 20, 140)  # both densities are practically zero at the ends
    grid = torch.cartesian_prod(axis, axis)
    cell = (axis[1] - axis[0]) ** 2
    data = (-energy.free_energy(grid) - energy.log_partition()).exp().detach() * cell
    density = p_n.log_prob(grid).exp() * cell
    torch.testing.assert_close(data.sum(), torch.tensor(1.0))
    torch.testing.assert_close(density.sum(), torch.tensor(1.0))
    # With this noise, the samples of the noise distribution are the nodes of the grid.
    eps = ((grid - noise_case.truth(p_n).mean) @ p_n.axes / p_n.std) if noise_case.fitted else grid
    noise = {"noise_distribution": eps.expand(nu, -1, -1)}
    torch.testing.assert_close(p_n.sample(eps), grid)

    def expected_loss():
        at_data, at_noise = terms_of(method, grid, noise)
        return (data * at_data + density * at_noise).sum()

    least = expected_loss()
    for name, slope in iterating.gradient_of(least, method.model).items():
        assert slope.abs().max() < 1e-7, name
    with torch.no_grad():
        for name, p in method.model.named_parameters():
            for step in (-0.05, 0.05):
                p.add_(step)
                assert expected_loss() > least + 1e-6, name
                p.sub_(step)


@every_backend
def test_upper_loss_by_hand(backend, float64):
    energy = randomise(eb.GRBM(v_dim=V_DIM, h_dim=H_DIM))
    q = randomise(eb.BernoulliPosterior(v_dim=V_DIM, h_dim=H_DIM))
    v = torch.randn(6, V_DIM)
    parts = {"posterior": q, "divergence": eb.KL(), "noise_distribution": StandardNormal()}
    method = eb.VNCE(energy=energy, **parts, optimizer=eb.SGD(lr=0.1), n_particles=5, nu=2)
    with torch.no_grad():
        method.model.log_z.fill_(0.4)
    both = method.draw_noise(v, keyed_generator(3))
    noise = both["upper"]
    with backend():
        (found,) = iterating.found(method, iterating.start(method), v, both)["upper"]

    def log_weights(x, u):  # the log-weight -E(x, h) - log q(h|x) at the relaxed h, written out
        logits = (x @ q.linear.weight.T + q.linear.bias).detach()
        h = ((logits + torch.logit(u)) / 0.1).sigmoid()
        quadratic = 0.5 * ((x - energy.b) / energy.log_std.exp()).square().sum(-1)
        minus_e = -quadratic + h @ energy.c + ((x @ energy.W) * h).sum(-1)
        return minus_e - (h * logsigmoid(logits) + (1 - h) * logsigmoid(-logits)).sum(-1)

    y = noise["noise_distribution"].flatten(0, 1)
    assert noise["at_data"].shape == (1, 6, H_DIM)
    assert noise["at_others"].shape == (5, 12, H_DIM)
    bound = torch.stack([log_weights(y, u) for u in noise["at_others"]]).exp().mean(0).log()
    c = method.model.log_z

    def log_p_n(x):
        return -0.5 * x.square().sum(-1) - math.log(2 * math.pi)

    at_data = logsigmoid(log_weights(v, noise["at_data"][0]) - c - math.log(2) - log_p_n(v))
    at_noise = logsigmoid(c + math.log(2) + log_p_n(y) - bound)
    iterating.assert_descends(found, -at_data.mean() - 2 * at_noise.mean(), method.model, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("nu", [1, 3])
def test_the_minimum_for_bits_is_where_the_model_has_the_probabilities_of_the_data(nu, float64):
    energy = make_binary(eb.BernoulliRBM(v_dim=V_DIM, h_dim=H_DIM))
    p_n = make_fitted_bernoulli()
    method = nce(energy, p_n, nu=nu)
    v = binary(V_DIM)
    with torch.no_grad():
        method.model.log_z.copy_(energy.log_partition())
        data = (-energy.free_energy(v) - energy.log_partition()).exp()
    u = torch.where(v == 1, 0.0, 1 - 1e-12)  # the noise of each of the four samples
    assert torch.equal(p_n.sample(u), v)
    at_data, at_noise = terms_of(method, v, {"noise_distribution": u.expand(nu, -1, -1)})
    for name, slope in iterating.gradient_of(data @ at_data + p_n.log_prob(v).exp() @ at_noise, method.model).items():
        assert slope.abs().max() < 1e-12, name
    uniform = torch.full((4,), 0.25)  # other data have their minimum elsewhere
    slopes = iterating.gradient_of(uniform @ at_data + p_n.log_prob(v).exp() @ at_noise, method.model)
    assert slopes["energy.W"].abs().max() > 1e-3


def test_noise_of_the_other_kind_of_v_is_refused():
    with pytest.raises(eb.ConfigError, match=r"StandardNormal does not draw.*noise_distribution=bernoulli"):
        nce(eb.BernoulliRBM(v_dim=V_DIM, h_dim=H_DIM))
    with pytest.raises(eb.ConfigError, match=r"FittedBernoulli does not draw.*noise_distribution=fitted_normal"):
        nce(eb.GRBM(v_dim=V_DIM, h_dim=H_DIM), make_fitted_bernoulli())
