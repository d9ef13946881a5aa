"""Tests of the study of the unrolled hypergradient's bias, on a GRBM whose true hypergradient is known."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

import eblvm_lit as eb
from eblvm_lit.core.functional import bind, grad, params_of
from eblvm_lit.core.tensors import tree_map
from eblvm_lit.data.base import Splits
from eblvm_lit.evaluation.studies.hypergradient_bias import HypergradientBias


@pytest.fixture
def method():
    torch.manual_seed(0)
    model = {"energy": eb.GRBM(v_dim=3, h_dim=4), "posterior": eb.BernoulliPosterior(v_dim=3, h_dim=4)}
    return eb.BiSM(**model, objective=eb.DSM(noise_std=0.5), divergence=eb.KL(), n_unroll=1, optimizer=eb.Adam(lr=1e-2))


@pytest.fixture
def v():
    return torch.randn(200, 3, generator=torch.Generator().manual_seed(1)) * 1.5


def test_the_reference_is_the_gradient_of_exact_score_matching(method, v):
    v = v.double()
    study = HypergradientBias(n_terms=60)
    noise = study.draw(method, v, torch.Generator().manual_seed(2))
    theta, phi = (tree_map(torch.Tensor.double, params_of(m)) for m in (method.energy, method.posterior))
    best, reference = study.reference(study.problem(method, v, noise), theta, phi)
    # The family of the posterior contains p(h|v). So q(h|v) equals p(h|v) at phi*, and the surrogate score equals the
    # marginal score.
    torch.testing.assert_close(best["linear.weight"], theta["W"].T, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(best["linear.bias"], theta["c"], rtol=1e-6, atol=1e-6)
    known, gradient = study.exact_reference(method, v, noise, theta, phi)
    torch.testing.assert_close(best, known, rtol=1e-6, atol=1e-6)
    points = method.objective.perturb(v, noise["data"])

    def loss(theta):
        return method.objective.loss(eb.ExactScore(bind(method.energy, theta)), points, noise["data"]).mean()

    torch.testing.assert_close(reference, gradient, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradient, grad(loss)(theta))


def test_the_bias_falls_with_n_and_phi_approaches_with_k(method, v):
    study = HypergradientBias(n_unrolls=[0, 5, 20, 50, 80], n_lower_steps=[0, 20, 100], n_series=80)
    found = study.compute(method, v, torch.Generator().manual_seed(2))
    distances = [found[f"phi_distance_k{k}"] for k in (0, 20, 100)]
    assert distances == sorted(distances, reverse=True)
    biases = [found[f"hypergradient_bias_k100_n{n}"] for n in (0, 5, 20, 80)]
    assert biases == sorted(biases, reverse=True)
    assert biases[-1] < 0.2 * biases[0]
    counts = (5, 20, 50, 80)
    at_optimum = [found[f"hypergradient_bias_optimum_n{n}"] for n in counts]
    rates = [(b / a) ** (1 / (m - n)) for (a, b), (n, m) in zip(pairwise(at_optimum), pairwise(counts), strict=True)]
    assert max(rates) < 0.8  # as the theorem says, the error decreases geometrically in N, with one rate
    assert max(rates) - min(rates) < 0.05
    assert found["hypergradient_bias_k100_n5"] < found["hypergradient_bias_k0_n5"]


def test_whitened_descent_is_as_fast_where_inputs_are_far_from_white(method, v):
    # the data have a mean far from zero, as images do, so that plain descent is slow in all other directions
    off_centre = v + 5
    found = {}
    for whiten in (False, True):
        study = HypergradientBias(n_unrolls=[0, 5, 10, 20, 40], n_lower_steps=[0, 20], n_series=40, whiten=whiten)
        found[whiten] = study.compute(method, off_centre, torch.Generator().manual_seed(2))
    at_optimum = [found[True][f"hypergradient_bias_optimum_n{n}"] for n in (5, 10, 20, 40)]
    assert at_optimum == sorted(at_optimum, reverse=True)
    assert at_optimum[-1] < 0.05 * at_optimum[0]
    assert found[True]["hypergradient_bias_optimum_n0"] == pytest.approx(found[False]["hypergradient_bias_optimum_n0"])
    for name in ("hypergradient_bias_optimum_n40", "hypergradient_bias_k20_n40"):
        assert found[True][name] < 0.2 * found[False][name]
    assert found[True]["phi_distance_k20"] < found[False]["phi_distance_k20"]
    # Without an unrolled step, the kind of descent makes no difference.
    assert found[True]["hypergradient_bias_k0_n0"] == pytest.approx(found[False]["hypergradient_bias_k0_n0"])


def test_from_a_uniform_posterior_the_bias_falls_with_k_and_with_n(method, v):
    unrolls = (0, 2, 20)
    steps = (0, 5, 60)
    options = {"start": "uniform", "step_size": 0.3, "n_series": 20, "whiten": True}
    study = HypergradientBias(n_unrolls=unrolls, n_lower_steps=steps, **options)
    found = study.compute(method, v, torch.Generator().manual_seed(2))
    best = params_of(method.energy)
    norm = torch.cat([best["W"].flatten(), best["c"]]).norm()
    # phi starts at zero, so that its distance is the norm of the best phi
    assert found["phi_distance_k0"] == pytest.approx(float(norm), rel=1e-5)
    biases = torch.tensor([[found[f"hypergradient_bias_k{k}_n{n}"] for k in steps] for n in unrolls])
    assert (biases.diff(dim=0) <= 0).all()
    assert (biases.diff(dim=1) <= 0).all()


@pytest.mark.parametrize("whiten", [False, True])
def test_the_series_is_unrolling_from_the_optimum(whiten, method, v):
    study = HypergradientBias(n_unrolls=[0, 3], n_lower_steps=[300], n_series=3, whiten=whiten)
    found = study.compute(method, v, torch.Generator().manual_seed(2))
    for n in (0, 3):
        exact = found[f"hypergradient_bias_optimum_n{n}"]
        assert found[f"hypergradient_bias_k300_n{n}"] == pytest.approx(exact, rel=1e-3)


def test_the_study_takes_training_examples_and_moves_nothing(method, v):
    before = {name: p.clone() for name, p in method.named_parameters()}
    study = HypergradientBias(n_unrolls=[1], n_lower_steps=[1], n_series=1)
    data = SimpleNamespace(splits=Splits(v, v[:2], v[:2]), as_float=lambda x: x)
    expected = study.compute(method, v, torch.Generator().manual_seed(2))
    assert study.evaluate(method, data, "test", torch.Generator().manual_seed(2)) == expected
    assert all(torch.equal(p, before[name]) for name, p in method.named_parameters())
