"""Noise-contrastive estimation and its variational form."""

import math
from contextlib import nullcontext

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

import eblvm_lit as eb
from cases import (
    H_DIM,
    INFERRED,
    NOISE_DISTRIBUTIONS,
    SUMMED,
    V_DIM,
    bernoulli_nodes,
    enumerated_free_energy,
    make_fitted_normal,
    randomise,
)
from eblvm_lit.core.functional import plain_autograd
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.noise_distributions.normal import StandardNormal
from helpers import iterating

every_noise_distribution = pytest.mark.parametrize("noise_case", NOISE_DISTRIBUTIONS, ids=str)
every_energy = pytest.mark.parametrize("energy_case", SUMMED, ids=str)
every_backend = pytest.mark.parametrize("backend", [nullcontext, plain_autograd])


def nce(energy, p_n=None, **options):
    return eb.NCE(
        energy=energy, noise_distribution=p_n or StandardNormal(), optimizer=eb.SGD(lr=0.1), seed=1, **options
    )


def vnce(energy, posterior=None, p_n=None, **options):
    parts = {} if posterior is None else {"posterior": posterior, "divergence": eb.KL()}
    options = {"optimizer": eb.SGD(lr=0.1), "seed": 1, **parts, **options}
    return eb.VNCE(energy=energy, noise_distribution=p_n or StandardNormal(), **options)


def terms_of(method, v, noise):
    """Both terms of the loss at the live parameters."""
    return method.terms(iterating.live(method), v, noise)


@every_energy
@pytest.mark.parametrize("nu", [1, 3])
def test_loss_is_the_cross_entropy_of_a_classifier(energy_case, nu, float64):
    energy = energy_case.make()
    v = torch.randn(6, V_DIM)
    p_n = make_fitted_normal()
    method = nce(energy, p_n, nu=nu)
    with torch.no_grad():
        method.model.c.fill_(0.7)
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
def test_the_minimum_is_where_the_model_has_the_density_of_the_data_and_c_is_log_z(noise_case, nu, float64):
    energy = randomise(eb.GRBM(v_dim=V_DIM, h_dim=H_DIM))
    p_n = noise_case.make()
    method = nce(energy, p_n, nu=nu)
    with torch.no_grad():
        energy.log_std.clamp_(-0.5, 0.3)
        method.model.c.copy_(energy.log_partition())
    axis = torch.linspace(-20, 20, 140)  # both densities vanish at its ends
    grid = torch.cartesian_prod(axis, axis)
    cell = (axis[1] - axis[0]) ** 2
    data = (-energy.free_energy(grid) - energy.log_partition()).exp().detach() * cell
    density = p_n.log_prob(grid).exp() * cell
    torch.testing.assert_close(data.sum(), torch.tensor(1.0))
    torch.testing.assert_close(density.sum(), torch.tensor(1.0))
    # noise whose samples are the nodes of the grid
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


@every_energy
@pytest.mark.parametrize("nu", [1, 2])
def test_with_the_true_posterior_the_loss_is_that_of_nce(energy_case, nu, float64):
    energy = energy_case.make()
    v = torch.randn(6, V_DIM)
    plain = nce(energy, nu=nu)
    variational = vnce(energy, nu=nu)
    noise = variational.noise(v, keyed_generator(3))
    torch.testing.assert_close(terms_of(variational, v, noise), terms_of(plain, v, noise), rtol=1e-10, atol=1e-10)
    assert list(variational.groups) == ["model"]
    if energy_case in INFERRED:  # also for any sample h of a posterior that equals p(h|v), relaxed ones included
        learned = vnce(energy, energy_case.exact_posterior(energy), nu=nu)
        noise = learned.noise(v, keyed_generator(3))
        torch.testing.assert_close(terms_of(learned, v, noise), terms_of(plain, v, noise), rtol=1e-10, atol=1e-10)


@every_backend
def test_the_true_posterior_is_a_constant_to_the_gradient(backend, float64):
    energy = randomise(eb.GRBM(v_dim=V_DIM, h_dim=H_DIM))
    v = torch.randn(5, V_DIM)
    method = vnce(energy, n_particles=3, nu=2)
    noise = method.draw_noise(v, keyed_generator(3))
    with backend():
        (found,) = iterating.found(method, iterating.start(method), v, noise)["model"]

    def log_weights(x, u):  # -E - log p(h|x)
        with torch.no_grad():
            h = energy.draw_latent(x, u)
            log_q = energy.free_energy(x) - energy.energy(x, h)
        return -energy.energy(x, h) - log_q

    drawn = noise["model"]
    y = drawn["noise_distribution"].flatten(0, 1)
    offset = method.model.c + math.log(2)
    at_data = logsigmoid(log_weights(v, drawn["at_data"])[0] - offset - method.noise_distribution.log_prob(v))
    bound = log_weights(y, drawn["at_noise"]).logsumexp(0) - math.log(3)
    at_noise = logsigmoid(offset + method.noise_distribution.log_prob(y) - bound)
    iterating.assert_descends(found, -at_data.mean() - 2 * at_noise.mean(), method.model)


@every_backend
def test_upper_loss_by_hand(backend, float64):
    energy = randomise(eb.GRBM(v_dim=V_DIM, h_dim=H_DIM))
    q = randomise(eb.BernoulliPosterior(v_dim=V_DIM, h_dim=H_DIM))
    v = torch.randn(6, V_DIM)
    method = vnce(energy, q, n_particles=5, nu=2)
    with torch.no_grad():
        method.model.c.fill_(0.4)
    both = method.draw_noise(v, keyed_generator(3))
    noise = both["upper"]
    with backend():
        (found,) = iterating.found(method, iterating.start(method), v, both)["upper"]

    def log_weights(x, u):  # -E - log q at the relaxed h, by the equations
        logits = (x @ q.linear.weight.T + q.linear.bias).detach()
        h = ((logits + torch.logit(u)) / 0.1).sigmoid()
        quadratic = 0.5 * ((x - energy.b) / energy.log_std.exp()).square().sum(-1)
        minus_e = -quadratic + h @ energy.c + ((x @ energy.W) * h).sum(-1)
        return minus_e - (h * logsigmoid(logits) + (1 - h) * logsigmoid(-logits)).sum(-1)

    y = noise["noise_distribution"].flatten(0, 1)
    assert noise["at_data"].shape == (1, 6, H_DIM)
    assert noise["at_noise"].shape == (5, 12, H_DIM)
    bound = torch.stack([log_weights(y, u) for u in noise["at_noise"]]).exp().mean(0).log()
    c = method.model.c

    def log_p_n(x):
        return -0.5 * x.square().sum(-1) - math.log(2 * math.pi)

    at_data = logsigmoid(log_weights(v, noise["at_data"][0]) - c - math.log(2) - log_p_n(v))
    at_noise = logsigmoid(c + math.log(2) + log_p_n(y) - bound)
    iterating.assert_descends(found, -at_data.mean() - 2 * at_noise.mean(), method.model, rtol=1e-7, atol=1e-7)


def test_bounds_are_below_the_log_density_and_rise_with_the_particles(float64):
    energy = randomise(eb.GRBM(v_dim=V_DIM, h_dim=H_DIM))
    v = torch.randn(6, V_DIM)
    q = randomise(eb.BernoulliPosterior(v_dim=V_DIM, h_dim=H_DIM, temperature=0.0))
    u, weights = bernoulli_nodes(q, v)  # noise that draws each state
    method = vnce(energy, q, n_particles=1)
    pair = vnce(energy, q, n_particles=2)
    p_n = {"noise_distribution": v.unsqueeze(0)}
    ones = 0
    losses = 0
    pairs = 0
    for i in range(len(u)):
        noise = {**p_n, "at_data": u[i].unsqueeze(0), "at_noise": u[i].unsqueeze(0)}
        one, _ = method.log_densities(iterating.live(method), v, v, noise)
        ones = ones + weights[i] * one
        losses = losses + weights[i] * terms_of(method, v, noise)[0]
        for j in range(len(u)):
            both = {**noise, "at_noise": torch.stack([u[i], u[j]])}
            two = pair.log_densities(iterating.live(pair), v, v, both)[1]
            pairs = pairs + weights[i] * weights[j] * two
    exact = nce(energy)
    assert (ones + 1e-3 < pairs).all()
    assert (pairs + 1e-3 < -energy.free_energy(v)).all()
    # so the term of the data is an upper bound of that of NCE
    assert (losses > terms_of(exact, v, p_n)[0] + 1e-3).all()
