"""Tests of the metric of the hypergradient's error: exact references, and estimates with a known error."""

from types import SimpleNamespace

import pytest
import torch

import eblvm_lit as eb
from cases import ENERGIES, OBJECTIVES, POSTERIORS, V_DIM, randomise
from eblvm_lit.core.functional import grad, params_of
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.core.tensors import flatten
from eblvm_lit.evaluation.latent_distributions import closed_divergences, latent_distribution
from eblvm_lit.evaluation.studies.hypergradient_error import HypergradientError
from helpers.iterating import start

pytestmark = pytest.mark.usefixtures("float64")
DSM = OBJECTIVES[5]


def bism(energy, posterior, hypergradient, objective=None):
    """Return a BiSM method in training, before its first step."""
    parts = {"objective": objective or DSM.make(), "divergence": eb.KL(), "optimizer": eb.Adam(lr=0.01)}
    method = eb.BiSM(energy=energy, posterior=posterior, hypergradient=hypergradient, compile=False, **parts)
    method.__dict__["_state"] = start(method)
    return method


def evaluate(method, split="val", **options):
    metric = HypergradientError(**{"batch_size": 40, "n_repeats": 3, **options})
    v = torch.randn(60, V_DIM, generator=keyed_generator(5))
    data = SimpleNamespace(splits=SimpleNamespace(train=v), as_float=lambda v: v)
    with torch.no_grad():
        return metric.evaluate(method, data, split, keyed_generator(7))


@pytest.mark.parametrize("objective", [OBJECTIVES[0], OBJECTIVES[4], OBJECTIVES[6]], ids=str)
def test_the_fixed_point_of_a_grbm_has_no_error_and_no_noise(objective):
    energy = ENERGIES[0].make()
    posterior = POSTERIORS[0].make()
    found = evaluate(bism(energy, posterior, eb.FixedPoint(), objective.make()))
    assert found["hypergradient_cosine"] == pytest.approx(1, abs=1e-10)
    assert found["hypergradient_error"] < 1e-9
    assert found["hypergradient_noise"] < 1e-9
    direct = evaluate(bism(energy, posterior, eb.Unroll(n_unroll=0), objective.make()))
    assert direct["hypergradient_error"] > 0.01
    assert direct["hypergradient_noise"] > 1e-3


def test_the_hypergradient_error_is_a_validation_metric_that_changes_no_state():
    method = bism(ENERGIES[0].make(), POSTERIORS[0].make(), eb.FixedPoint())
    before = [x.clone() for x in method.state_dict().values()]
    assert evaluate(method, "test") == {}
    assert evaluate(method)
    assert all(torch.equal(a, b) for a, b in zip(before, method.state_dict().values(), strict=True))
    del method.__dict__["_state"]
    assert evaluate(method) == {}


def test_the_noise_is_about_the_mean_of_the_estimates_and_not_about_the_reference():
    found = HypergradientError.compare(torch.tensor([[4.0, 0.0], [4.0, 6.0]]), torch.tensor([2.0, 0.0]))
    assert found["hypergradient_cosine"] == pytest.approx(4 / 5)
    assert found["hypergradient_error"] == pytest.approx(13**0.5 / 2)
    assert found["hypergradient_noise"] == pytest.approx(3 / 2)


@pytest.mark.parametrize("n", [15, 40])
def test_the_reference_by_quadrature_is_that_of_the_closed_form(n, monkeypatch):
    energy = eb.GaussianLatentModel(v_dim=V_DIM, h_dim=2, weight_scale=0.9)
    method = bism(energy, eb.LinearGaussianPosterior(v_dim=V_DIM, h_dim=2), eb.FixedPoint())
    metric = HypergradientError(half_width=9.0, n_nodes=61)
    v = torch.randn(n, V_DIM)
    noise = method.objective.noise(v, (), keyed_generator(3))
    points = method.objective.perturb(v, noise)
    theta = params_of(energy)
    exact = metric.marginal_reference(method, theta, points, noise)
    monkeypatch.setattr("eblvm_lit.evaluation.studies.hypergradient_error.MarginalEnergy", eb.DeepVectorEnergy)
    assert metric.has_marginal(energy, points)
    torch.testing.assert_close(metric.marginal_reference(method, theta, points, noise), exact, rtol=1e-8, atol=1e-8)


def test_a_grid_too_small_for_the_latents_gives_a_warning_and_no_number(caplog):
    energy = randomise(eb.DeepVectorEnergy(v_dim=V_DIM, h_dim=2, head_dim=6, widths=[5, 4]), 0.4)
    method = bism(energy, eb.LinearGaussianPosterior(v_dim=V_DIM, h_dim=2), eb.FixedPoint())
    assert evaluate(method, half_width=0.01, n_nodes=5) == {}
    assert "hypergradient_error" in caplog.text
    # three latents are too many for the metric's grid
    energy = eb.DeepVectorEnergy(v_dim=V_DIM, h_dim=3, head_dim=6, widths=[5, 4])
    assert evaluate(bism(energy, eb.LinearGaussianPosterior(v_dim=V_DIM, h_dim=3), eb.FixedPoint())) == {}


def test_the_lower_reference_is_the_implicit_gradient_at_the_best_independent_bits():
    energy = randomise(eb.CoupledGRBM(v_dim=V_DIM, h_dim=4), 0.5)
    method = bism(energy, randomise(eb.BernoulliPosterior(v_dim=V_DIM, h_dim=4)), eb.Implicit(n_terms=5))
    v = torch.randn(9, V_DIM)
    theta = params_of(energy)
    phi = params_of(method.posterior)
    found = grad(lambda phi: HypergradientError.bits_lower(method, v, theta, phi, 0))(phi)

    q = latent_distribution(method.posterior, v)
    p = latent_distribution(energy, v)
    expected = torch.autograd.grad(closed_divergences(q, p)["posterior_kl"].mean(), list(method.posterior.parameters()))
    torch.testing.assert_close(flatten(found), torch.cat([g.flatten() for g in expected]))
    numbers = evaluate(method, n_reference_steps=100)
    assert 0 < numbers["hypergradient_error_lower"] != numbers["hypergradient_error"]
