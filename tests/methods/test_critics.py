"""Tests of the Fisher critics: their objective against closed forms, what a step descends, and the metric of the
divergence."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

import eblvm_lit as eb
from cases import hermite, product, randomise
from eblvm_lit.core.functional import params_of, plain_autograd
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.evaluation.critic_divergence import CriticDivergence
from eblvm_lit.methods.critics import FisherCritic, VaGESFisher, bracket
from eblvm_lit.networks.vector_field import VectorField
from helpers import iterating
from helpers.stand_in import StandIn


def normal_expectation(n=40):
    """Return nodes v and u, and weights, of an expectation over v ~ N(0, I) in the plane and over random signs u."""
    (v, w) = hermite(n, 2)
    u = product([-1.0, 1.0], 2)
    return v.repeat_interleave(len(u), 0), u.repeat(len(v), 1), w.repeat_interleave(len(u)) / len(u)


def mean_bracket(critic, score):
    v, u, w = normal_expectation()
    with torch.no_grad():
        return w @ bracket(critic, score(v), v, u)


def half_mean_square(field):
    v, _, w = normal_expectation()
    with torch.no_grad():
        return 0.5 * w @ field(v).square().sum(-1)


@pytest.fixture
def model(float64):
    return eb.PerturbedGRBM(v_dim=2, h_dim=3, perturbation=0.7)


def optimum(model):
    # The best critic is the model's score minus the score of the data, which is -v.
    return lambda v: model.score(v) + v


every_backend = pytest.mark.parametrize("backend", [nullcontext, plain_autograd])


def test_the_bracket_of_any_critic_is_the_divergence_less_its_distance_from_the_best(model):
    divergence = half_mean_square(optimum(model))
    assert divergence > 0.5
    torch.testing.assert_close(mean_bracket(optimum(model), model.score), divergence, rtol=1e-9, atol=0)
    for critic in (randomise(nn.Linear(2, 2)), lambda v: v**3 - 1, torch.sin):
        short = half_mean_square(lambda v, f=critic: f(v) - optimum(model)(v))
        torch.testing.assert_close(mean_bracket(critic, model.score), divergence - short, rtol=1e-9, atol=1e-9)
        assert short > 0.1


@every_backend
def test_bracket_of_a_linear_critic_by_hand(backend, float64):
    critic = randomise(VectorField(v_dim=3, n_layers=1))
    A = critic.layers[0].weight
    a = critic.layers[0].bias
    s, v, u = torch.randn(3, 5, 3).unbind()
    f = v @ A.T + a
    expected = torch.stack([s[i] @ f[i] + u[i] @ A @ u[i] - 0.5 * f[i] @ f[i] for i in range(5)])
    with backend():
        torch.testing.assert_close(bracket(critic, s, v, u), expected)
        torch.testing.assert_close(bracket(critic, *(x.view(5, 1, 3, 1) for x in (s, v, u))), expected)


def exact(energy, **options):
    return FisherCritic(energy=energy, critic=VectorField(v_dim=2), optimizer=eb.Adam(lr=1e-2), **options)


def variational(energy, **options):
    q = randomise(eb.BernoulliPosterior(v_dim=2, h_dim=3))
    options = {"posterior": q, "divergence": eb.KL(), **options}
    return VaGESFisher(energy=energy, critic=VectorField(v_dim=2), optimizer=eb.Adam(lr=1e-2), **options)


def smooth(method, v):
    """Return the values at v of the smooth function to which a residual critic is added."""
    return method.score.smooth(method.energy, method.posterior, v)


def test_a_step_descends_minus_the_bracket(model):
    method = exact(model)
    v = torch.randn(8, 2)
    noise = method.noise(v, keyed_generator(0))
    assert noise["u"].unique().tolist() == [-1, 1]
    (found,) = iterating.found(method, iterating.start(method), v, {"critic": noise})["critic"]
    loss = -bracket(method.critic, model.score(v).detach(), v, noise["u"]).mean()
    iterating.assert_descends(found, loss, method.critic)


def test_the_variational_score_by_hand_and_after_the_lower_steps(model):
    method = variational(model, n_particles=3)
    v = torch.randn(8, 2)
    u = method.noise(v, keyed_generator(0))["score"]
    assert u.shape == (3, 8, 3)
    for shift in (0.0, 1.0):
        phi = {name: p + shift for name, p in params_of(method.posterior).items()}
        logits = v @ phi["linear.weight"].T + phi["linear.bias"]
        h = ((logits + torch.logit(u)) / 0.1).sigmoid().mean(0)
        expected = model.b - v + h @ model.W.T
        torch.testing.assert_close(method.model_score(method.live_state().at(phi=phi), v, u), expected.detach())


@every_backend
def test_a_residual_critic_is_added_to_the_model_score(backend, model):
    # The critic f is the network plus the model's score, which has a closed form here.
    v = torch.randn(8, 2)
    u = torch.randn(8, 2)
    q = eb.BernoulliPosterior(v_dim=2, h_dim=3)
    with torch.no_grad():
        q.linear.weight.copy_(model.W.T), q.linear.bias.copy_(model.c)
    for method in (exact(model, residual=True), variational(model, posterior=q, residual=True)):
        expected = bracket(lambda x, f=method.critic: f(x) + model.score(x), model.score(v), v, u)
        with backend():
            torch.testing.assert_close(smooth(method, v), model.score(v))
            torch.testing.assert_close(bracket(method.field(method.live_state()), model.score(v), v, u), expected)


def test_the_field_of_a_deep_model_is_its_slope_at_the_posterior_mean(float64):
    energy = eb.DeepVectorEnergy(v_dim=2, h_dim=3, head_dim=6, widths=[5])
    q = eb.NetworkGaussianPosterior(network=eb.MLP(sizes=[2, 5]), h_dim=3)
    method = variational(energy, posterior=q, divergence=eb.Fisher(), residual=True)
    v = torch.randn(4, 2)
    x = v.clone().requires_grad_()
    h = q.mean(v).detach()
    (expected,) = torch.autograd.grad(-energy(x, h).sum(), x)
    torch.testing.assert_close(smooth(method, v), expected)
    slope = torch.autograd.functional.jacobian(lambda x: smooth(method, x).sum(0), v)
    # The finite difference contains the change of q's mean with v, which the Jacobian must also contain.
    step = 1e-6 * torch.ones(2)
    change = (smooth(method, v + step) - smooth(method, v - step)) / 2e-6
    torch.testing.assert_close(slope.sum(-1).T, change, rtol=1e-6, atol=1e-8)


def test_training_finds_the_divergence_of_a_gaussian_model(float64):
    model = eb.GaussianLatentModel(v_dim=2, h_dim=3, weight_scale=0.9)
    model.b.data.fill_(1.0)
    method = FisherCritic(energy=model, critic=VectorField(v_dim=2, n_layers=1), optimizer=eb.SGD(lr=0.05))
    truth = half_mean_square(optimum(model))
    state = iterating.start(method)
    generator = keyed_generator(0)
    start = mean_bracket(method.critic, model.score)
    for _ in range(200):
        v = torch.randn(500, 2, generator=generator)
        method.run_iteration(state, v, method.draw_noise(v, generator))
    assert start < 0.5 * truth
    torch.testing.assert_close(mean_bracket(method.critic, model.score), truth, rtol=0.02, atol=0)


def test_the_metric_is_the_mean_bracket_with_the_true_divergence(model):
    method = exact(model)
    v = torch.randn(2500, 2)  # more examples than the metric computes in one block
    truth = eb.PerturbedGRBM(v_dim=2, h_dim=3, perturbation=0.0)
    found = CriticDivergence(data_energy=truth).compute(method, v, keyed_generator(1))
    generator = keyed_generator(1)
    expected = torch.cat([method.bracket(rows, generator) for rows in v.split(1000)]).mean()
    assert found["fisher_divergence"] == pytest.approx(expected.item(), rel=1e-12)
    exact_value = 0.5 * (model.score(v) + v).square().sum(-1).mean().item()
    assert found["fisher_divergence_true"] == pytest.approx(exact_value, rel=1e-12)
    error = abs(found["fisher_divergence"] - exact_value) / exact_value
    assert found["fisher_divergence_relative_error"] == pytest.approx(error, rel=1e-12)
    assert all(type(value) is float for value in found.values())
    assert CriticDivergence(data_energy=truth).compute(method, v, keyed_generator(1)) == found


def test_the_metric_where_the_truth_is_zero_unknown_or_there_is_no_critic(float64):
    truth = eb.PerturbedGRBM(v_dim=2, h_dim=3, perturbation=0.0)
    v = torch.randn(5, 2)
    zero = CriticDivergence(data_energy=truth).compute(exact(truth), v, keyed_generator(0))
    assert zero.keys() == {"fisher_divergence", "fisher_divergence_true"}
    assert zero["fisher_divergence_true"] == 0
    assert list(CriticDivergence().compute(exact(truth), v, keyed_generator(0))) == ["fisher_divergence"]
    other = StandIn()
    other.energy = truth
    assert CriticDivergence(data_energy=truth).compute(other, v, keyed_generator(0)) == {}
