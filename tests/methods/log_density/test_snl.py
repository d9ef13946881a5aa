"""Tests of the self-normalised likelihood, of its form for latents, and of the metrics of a learned log Z."""

import math
from contextlib import nullcontext

import pytest
import torch

import eblvm_lit as eb
from cases import (
    H_DIM,
    V_DIM,
    bernoulli_nodes,
    make_fitted_normal,
    make_gaussian_latent,
    randomise,
)
from eblvm_lit.core.functional import plain_autograd
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.noise_distributions.normal import StandardNormal
from helpers import iterating
from helpers.shell import train

every_backend = pytest.mark.parametrize("backend", [nullcontext, plain_autograd])


def make_grbm():
    energy = randomise(eb.GRBM(v_dim=V_DIM, h_dim=H_DIM))
    with torch.no_grad():
        energy.log_std.clamp_(-0.5, 0.3)
    return energy


MODELS = {"grbm": make_grbm, "gaussian": make_gaussian_latent}
every_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)


def snl(energy, p_n=None, c=0.0, optimizer=None, **options):
    p_n = p_n or StandardNormal()
    optimizer = optimizer or eb.SGD(lr=0.1)
    method = eb.SNL(energy=energy, noise_distribution=p_n, optimizer=optimizer, seed=1, **options)
    torch.nn.init.constant_(method.model.log_z, c)
    return method


def vsnl(energy, posterior=None, p_n=None, c=0.0, **options):
    parts = {} if posterior is None else {"posterior": posterior, "divergence": eb.KL()}
    p_n = p_n or StandardNormal()
    method = eb.VSNL(energy=energy, noise_distribution=p_n, optimizer=eb.SGD(lr=0.1), seed=1, **parts, **options)
    torch.nn.init.constant_(method.model.log_z, c)
    return method


@every_backend
@every_model
def test_the_loss_by_hand(make, backend, float64):
    energy = make()
    v = torch.randn(6, V_DIM)
    p_n = make_fitted_normal()
    method = snl(energy, p_n, c=0.7, n_proposals=3)
    noise = method.draw_noise(v, keyed_generator(3))
    with backend():
        (found,) = iterating.found(method, iterating.start(method), v, noise)["model"]
    y = p_n.sample(noise["model"]["noise_distribution"].flatten(0, 1))
    weights = (-energy.free_energy(y)).exp() / p_n.log_prob(y).exp() / math.exp(0.7)
    expected = energy.free_energy(v) + 0.7 + weights.view(3, 6).mean(0) - 1
    torch.testing.assert_close(method.validation_loss(v, keyed_generator(3)), expected)
    c = method.model.log_z
    y = y.detach()
    weights = (-energy.free_energy(y) - p_n.log_prob(y) - c).exp()
    iterating.assert_descends(found, energy.free_energy(v).mean() + c + weights.mean() - 1, method.model)


@every_model
@pytest.mark.parametrize("fitted", [False, True])
def test_the_expected_loss_bounds_the_negative_log_likelihood_and_is_tight_at_log_z(make, fitted, float64):
    energy = make()
    p_n = make_fitted_normal() if fitted else StandardNormal()
    method = snl(energy, p_n)
    axis = torch.linspace(-22, 22, 140)
    grid = torch.cartesian_prod(axis, axis)
    cell = (axis[1] - axis[0]) ** 2
    # With this noise, the samples of the proposal are the nodes of the grid.
    eps = ((grid - p_n.mean) @ p_n.axes / p_n.std) if fitted else grid
    v = torch.randn(5, V_DIM)
    density = p_n.log_prob(grid).exp() * cell
    torch.testing.assert_close(density.sum(), torch.tensor(1.0))
    log_z = energy.log_partition()

    def expected_loss(c):
        """Compute the loss at v, where the expectation over the proposal is a sum over the grid."""
        torch.nn.init.constant_(method.model.log_z, float(torch.as_tensor(c).detach()))
        noise = {"noise_distribution": eps.unsqueeze(0)}
        losses = [method.loss(iterating.live(method), one.expand(len(grid), -1), noise) for one in v]
        return torch.stack([(density * loss).sum() for loss in losses]).mean()

    negative_log_likelihood = energy.free_energy(v).mean() + log_z
    tight = expected_loss(log_z)
    torch.testing.assert_close(tight, negative_log_likelihood, rtol=1e-9, atol=1e-9)
    found = iterating.gradient_of(tight, method.model)
    exact = iterating.gradient_of(negative_log_likelihood, energy)
    # The gradient with respect to c is zero, because log Z is the best c for this theta.
    assert abs(found["log_z"]) < 1e-9
    # With c = log Z, the gradient with respect to theta is that of maximum likelihood.
    for name, value in exact.items():
        torch.testing.assert_close(found[f"energy.{name}"], value, rtol=1e-7, atol=1e-8)
        assert value.abs().max() > 1e-2
    for off in (-0.5, 0.5):
        gap = expected_loss(log_z + off) - negative_log_likelihood
        torch.testing.assert_close(gap, torch.tensor(off + math.exp(-off) - 1), rtol=1e-7, atol=1e-9)
        assert gap > 0.1


def test_c_starts_at_the_estimate_of_the_proposal(float64):
    energy = make_grbm()
    v = torch.randn(50, V_DIM)
    method = snl(energy, make_fitted_normal(), n_proposals=20)
    weights = (-energy.free_energy(y := method.noise_distribution.sample(torch.randn(100_000, V_DIM)))).exp()
    weights = weights / method.noise_distribution.log_prob(y).exp()
    found = method.proposal_log_z(v, 10).exp()
    assert (found - energy.log_partition().exp()).abs() < 5 * weights.std() / (50 * 20 * 10) ** 0.5
    assert (found / energy.log_partition().exp() - 1).abs() < 0.2


def test_a_run_starts_c_at_the_estimate_of_the_proposal(tmp_path):
    options = ("method=snl", "data=checkerboard", "noise_distribution=standard_normal", "optimizer.lr=1e-9")
    found = train(tmp_path, *options, "n_validations=1", "data.batch_size=100", "trainer.max_steps=2")
    # The run starts c at an estimate of log Z from 100,000 samples, and its learning rate is too small to change c.
    assert abs(found["test/learned_log_z_error"]) < 0.1 < found["test/learned_log_z"]


def test_binary_latents_are_bits_whose_weights_have_the_mean_of_the_free_energy(float64):
    energy = make_grbm()
    q = randomise(eb.BernoulliPosterior(v_dim=V_DIM, h_dim=H_DIM, temperature=0.5))
    method = vsnl(energy, q, c=0.3, n_particles=1)
    v = torch.randn(1, V_DIM)
    y = torch.randn(1, V_DIM)
    nodes, node_weights = bernoulli_nodes(q, y)  # With these uniform numbers, q draws each of its states once.
    n = len(nodes)
    at = {"at_data": torch.full((1, n, H_DIM), 0.4), "at_others": nodes.view(1, n, H_DIM)}
    losses = method.loss(iterating.live(method), v.expand(n, -1), {"noise_distribution": y.expand(1, n, -1), **at})
    h = (q.logits(v) + torch.tensor(0.4).logit() > 0).double()
    evidence_bound = (-energy.energy(v, h) - q.log_prob(h, v)).squeeze()
    weight = (-energy.free_energy(y) - StandardNormal().log_prob(y) - 0.3).exp()
    expected = 0.3 - evidence_bound + weight.squeeze() - 1
    torch.testing.assert_close((node_weights.flatten() * losses).sum(), expected, rtol=1e-8, atol=1e-8)


@every_model
def test_what_is_reported_of_a_learned_log_z(make, float64):
    energy = make()
    v = torch.randn(50, V_DIM)
    metric = eb.LogLikelihood()
    log_z = energy.log_partition().item()
    c = 0.7
    for method in (snl(energy, c=c), vsnl(energy, c=c)):
        found = metric.compute(method, v, keyed_generator(0))
        assert found["learned_log_z"] == pytest.approx(c)
        assert found["learned_log_z_error"] == pytest.approx(c - log_z)
        assert found["learned_log_likelihood"] == pytest.approx((-energy.free_energy(v).mean() - c).item())
        assert found["log_likelihood"] == pytest.approx((-energy.free_energy(v).mean() - log_z).item())
