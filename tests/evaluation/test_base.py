"""Tests of metrics against enumeration, quadrature and closed forms."""

import math

import pytest
import torch
from torch import nn

import eblvm_lit as eb
from cases import binary
from eblvm_lit.core.tensors import in_float64
from eblvm_lit.evaluation.base import mean_over_rows
from eblvm_lit.evaluation.fisher_score import FisherScore
from eblvm_lit.evaluation.latent_distributions import BernoulliLatents, GaussianLatents
from eblvm_lit.evaluation.likelihood.ais import AIS, GaussianPath, estimate_from_log_weights
from eblvm_lit.evaluation.posterior_divergence import PosteriorDivergence
from helpers.models import F64, LatentOnly, generator, method_of, normal, random_gaussian_model, random_grbm


class MixtureEnergy(LatentOnly, eb.MarginalEnergy):
    """A GRBM whose closed forms are hidden, so that its score and other derivatives are computed by autograd."""

    def free_energy(self, v):
        return self.model.free_energy(v)


@pytest.mark.parametrize("parametrisation", ["code", "paper"])
@pytest.mark.parametrize(("v_dim", "h_dim", "scale"), [(5, 8, 1.0), (3, 9, 1.5)])
def test_ais_agrees_with_enumeration(v_dim, h_dim, scale, parametrisation):
    model = random_grbm(v_dim, h_dim, parametrisation, scale)
    exact = model.log_partition().item()
    estimate = AIS(n_chains=1000, n_betas=200).estimate(model, generator())
    untrained = AIS(n_chains=1000, n_betas=2).estimate(model, generator())
    assert abs(estimate.log_z - exact) < 4 * estimate.standard_error
    assert estimate.standard_error < 0.05  # a small standard error makes the check above a strict one
    assert estimate.standard_error < untrained.standard_error / 2  # more temperatures have reduced the error
    assert 100 < estimate.ess < 1000


def test_ais_standard_error_is_calibrated():
    """Check that the error of log Z, divided by its standard error, has mean 0 and variance 1 over independent runs."""
    model = random_grbm(4, 7)
    exact = model.log_partition().item()
    runs = [AIS(n_chains=300, n_betas=30).estimate(model, generator(seed)) for seed in range(300)]
    z = torch.tensor([(run.log_z - exact) / run.standard_error for run in runs])
    assert abs(z.mean()) < 4 / math.sqrt(len(z))
    assert 0.75 < z.var() < 1.3


@pytest.mark.parametrize("parametrisation", ["code", "paper"])
def test_ais_is_exact_without_coupling(parametrisation):
    """Compare AIS with closed forms for models without coupling (W = 0).

    With c = 0, the model is the base model of AIS. With c only, each weight is prod_j (1 + exp c_j) / 2.
    """
    model = random_grbm(4, 6, parametrisation)
    model.W.zero_()
    found = AIS(n_chains=4, n_betas=7).estimate(model, generator()).log_z
    assert found == pytest.approx(model.log_partition().item(), abs=1e-12)
    model.c.zero_()
    estimate = AIS(n_chains=10, n_betas=5).estimate(model, generator())
    by_hand = model.visible_std().log().sum() + 2 * math.log(2 * math.pi) + 6 * math.log(2)
    assert estimate.log_z == pytest.approx(by_hand.item(), abs=1e-12)
    assert (estimate.standard_error, estimate.ess) == (0.0, 10.0)


def test_ais_runs_in_the_models_type_and_by_its_generator():
    model = random_grbm(5, 8).float()
    ais = AIS(n_chains=1000, n_betas=200)
    assert ais.log_weights(GaussianPath(model), generator()).dtype == F64
    one, same, other = (ais.estimate(model, generator(seed)) for seed in (1, 1, 2))
    assert one == same != other
    assert abs(one.log_z - model.log_partition().item()) < 4 * one.standard_error


def test_error_and_effective_size_of_known_weights():
    weights = torch.tensor([1.0, 2.0, 3.0, 6.0], dtype=F64)
    # without a shift, exp of these log-weights would overflow
    estimate = estimate_from_log_weights(weights.log() + 1000, 5.0)
    assert estimate.log_z == pytest.approx(1005 + math.log(3))
    assert estimate.standard_error == pytest.approx(math.sqrt(14 / 3) / 3 / 2)
    assert estimate.ess == pytest.approx(144 / 50)


def test_log_likelihood_of_the_gaussian_model_is_its_marginals():
    model = random_gaussian_model()
    v = normal(50, 3)
    result = eb.LogLikelihood(max_enumerated=0).compute(method_of(model), v, generator())
    assert list(result) == ["log_likelihood"]
    assert result["log_likelihood"] == pytest.approx(model.marginal().log_prob(v).mean().item(), abs=1e-10)


def test_log_likelihood_beyond_enumeration_is_by_ais():
    model = random_grbm(4, 7)
    v = normal(50, 4)
    exact = eb.LogLikelihood(max_enumerated=7).compute(method_of(model), v, generator())
    metric = eb.LogLikelihood(max_enumerated=6, n_chains=1000, n_betas=200)
    sampled = metric.compute(method_of(model), v, generator())
    error = sampled["log_z_standard_error"]
    assert 0 < error < 0.05
    assert abs(sampled["log_likelihood"] - exact["log_likelihood"]) < 4 * error
    assert sampled["log_likelihood"] + sampled["log_z"] == pytest.approx(-model.free_energy(v).mean().item())
    assert 100 < sampled["ais_effective_sample_size"] < 1000
    assert len(sampled) == 4


def test_log_likelihood_of_a_float32_model_is_summed_in_float64():
    model = random_grbm(3, 6).float()
    v = normal(3000, 3).float()
    before = {name: p.clone() for name, p in model.named_parameters()}
    result = eb.LogLikelihood().compute(method_of(model), v, generator())["log_likelihood"]
    double = in_float64(model)
    expected = (-double.free_energy(v.double())).mean() - double.log_partition()
    assert result == pytest.approx(expected.item(), abs=1e-12)
    assert all(torch.equal(p, before[name]) and p.dtype == torch.float32 for name, p in model.named_parameters())


def test_log_likelihood_of_an_improper_model_is_minus_infinity():
    model = random_gaussian_model()
    model.W.mul_(10)
    assert eb.exact_log_partition(model, 20) == math.inf
    assert eb.LogLikelihood().compute(method_of(model), normal(5, 3), generator())["log_likelihood"] == -math.inf


def fisher(energy, v, **kwargs):
    return FisherScore(**kwargs).compute(method_of(energy), v, generator())["fisher"]


@pytest.mark.parametrize("parametrisation", ["code", "paper"])
def test_fisher_equals_autograd(parametrisation):
    model = random_grbm(3, 5, parametrisation)
    v = normal(2100, 3)
    assert fisher(model, v) == pytest.approx(fisher(MixtureEnergy(model), v), abs=1e-10)
    by_hand = 0.0
    for row in v[:20]:
        s = -torch.func.grad(lambda x: model.free_energy(x[None]).sum())(row)
        hessian = torch.func.hessian(lambda x: model.free_energy(x[None]).sum())(row)
        by_hand += (0.5 * s.square().sum() - hessian.trace()).item() / 20
    assert fisher(model, v[:20]) == pytest.approx(by_hand, abs=1e-10)


def bernoulli_posterior(model, seed):
    """Return a posterior of a GRBM that differs from the exact posterior."""
    q = eb.BernoulliPosterior(v_dim=len(model.b), h_dim=model.h_dim).double().requires_grad_(False)
    q.linear.weight.copy_(model.coupling().T + normal(*q.linear.weight.shape, seed=seed))
    q.linear.bias.copy_(model.c + normal(*q.linear.bias.shape, seed=seed + 1))
    return q


def gaussian_posterior(model, seed):
    q = eb.LinearGaussianPosterior(v_dim=len(model.b), h_dim=model.h_dim).double().requires_grad_(False)
    for p, exact in ((q.linear.weight, model.W.T), (q.linear.bias, model.c), (q.log_std, torch.zeros(()))):
        p.copy_(exact + 0.5 * normal(*p.shape, seed=seed))
    return q


def posterior_divergence(energy, posterior, v, n_particles=10):
    metric = PosteriorDivergence(n_particles=n_particles)
    return metric.compute(method_of(energy, posterior), v, generator())


def test_bernoulli_kl_is_the_sum_over_all_latent_states():
    model = random_grbm(3, 6, "paper")
    q = bernoulli_posterior(model, seed=7)
    v = normal(250, 3)
    h = binary(6).double().unsqueeze(1).expand(-1, len(v), -1)
    log_q = q.log_prob(h, v)
    log_p = -model.energy(v, h) + model.free_energy(v)
    torch.testing.assert_close(log_p.logsumexp(0), torch.zeros(len(v), dtype=F64))
    expected = (log_q.exp() * (log_q - log_p)).sum(0).mean()
    result = posterior_divergence(model, q, v)
    assert list(result) == ["posterior_kl"]
    assert expected > 0.1
    assert result["posterior_kl"] == pytest.approx(expected.item(), abs=1e-12)


def test_gaussian_divergences_are_those_of_the_two_laws():
    (m, log_s), (mean, log_std) = (normal(2, 50, 4, seed=seed) for seed in (8, 9))
    found = GaussianLatents(m, log_s).divergences(GaussianLatents(mean, log_std))
    q, p = (torch.distributions.Normal(a, b.exp()) for a, b in ((m, log_s), (mean, log_std)))
    torch.testing.assert_close(found["posterior_kl"], torch.distributions.kl_divergence(q, p).sum(-1))
    # At the point m + s e, the scores of q and p differ by slope * e + offset.
    slope = q.scale / p.variance - 1 / q.scale
    offset = (m - mean) / p.variance
    torch.testing.assert_close(found["posterior_fisher"], 0.5 * (slope.square() + offset.square()).sum(-1))


def test_estimates_agree_with_the_closed_forms():
    """Check that Monte Carlo estimates agree with closed forms that a wrapper hides from the metric."""
    v = normal(200, 3)
    grbm = random_grbm(3, 6)
    q = bernoulli_posterior(grbm, seed=7)
    q.temperature = 2.0  # at this temperature, relaxed latents are far from binary ones
    exact = posterior_divergence(grbm, q, v)["posterior_kl"]
    estimate = posterior_divergence(MixtureEnergy(grbm), q, v, n_particles=1000)
    assert list(estimate) == ["posterior_kl"]
    assert estimate["posterior_kl"] == pytest.approx(exact, rel=0.02)
    gaussian = random_gaussian_model()
    q = gaussian_posterior(gaussian, seed=8)
    exact = posterior_divergence(gaussian, q, v)
    estimate = posterior_divergence(LatentOnly(gaussian), q, v, n_particles=1000)
    assert list(estimate) == ["posterior_fisher"]
    assert estimate["posterior_fisher"] == pytest.approx(exact["posterior_fisher"], rel=0.02)
    both = posterior_divergence(MixtureEnergy(gaussian), q, v, n_particles=1000)
    assert both == pytest.approx(exact, rel=0.02)


def test_bernoulli_kl_survives_saturated_units():
    q = BernoulliLatents(torch.tensor([[900.0, -900.0]]))
    p = BernoulliLatents(torch.tensor([[-900.0, -900.0]]))
    assert q.divergences(p)["posterior_kl"].tolist() == [900.0]


METRICS = [eb.LogLikelihood(n_chains=10, n_betas=5), FisherScore(), PosteriorDivergence()]


def test_metrics_say_nothing_where_they_do_not_apply():
    v = normal(5, 3)
    grbm = random_grbm(3, 5)
    likelihood, fisher_score, divergence = METRICS
    for method in (method_of(), method_of(nn.Linear(3, 1)), method_of(LatentOnly(grbm))):
        assert all(metric.compute(method, v, generator()) == {} for metric in METRICS)
    assert likelihood.compute(method_of(MixtureEnergy(grbm)), v, generator()) == {}
    assert FisherScore(max_differentiated=2).compute(method_of(MixtureEnergy(grbm)), v, generator()) == {}
    kinked = eb.SpectralEnergy(network=eb.MLP(sizes=[3, 8])).double()
    for energy in (eb.BernoulliRBM(v_dim=3, h_dim=2), kinked):
        assert fisher_score.compute(method_of(energy), v, generator()) == {}
    assert fisher_score.compute(method_of(grbm), v, generator())  # the closed form of the GRBM gives a number
    for energy, posterior in ((grbm, None), (LatentOnly(grbm), bernoulli_posterior(grbm, seed=1))):
        assert divergence.compute(method_of(energy, posterior), v, generator()) == {}


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("metric", METRICS)
def test_metrics_give_plain_numbers_in_any_autograd_mode(metric, mode):
    model = random_gaussian_model().requires_grad_(True)
    with mode():
        result = metric.compute(method_of(model, gaussian_posterior(model, seed=2)), normal(5, 3), generator())
    assert result
    assert all(type(value) is float and math.isfinite(value) for value in result.values())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_mean_over_rows_weighs_rows_and_not_blocks():
    v = torch.arange(7.0)
    assert mean_over_rows(lambda x: {"v": x}, v, rows=3) == {"v": 3.0}
