"""Tests that the Fisher information of a posterior is the Hessian of the KL divergence at q = p."""

import pytest
import torch

import eblvm_lit as eb
from eblvm_lit.evaluation.latent_distributions import latent_distribution
from eblvm_lit.hypergradients.implicit import Implicit, hessian_product
from helpers.iterating import found, start


def at_the_true_posterior(energy, posterior):
    with torch.no_grad():
        posterior.linear.weight.copy_(energy.W.T)
        posterior.linear.bias.copy_(energy.c)
    objective = eb.MDSM(sigma_min=0.3, sigma_max=1.0, sigma0=0.3)
    implicit = Implicit(curvature="fisher")
    parts = {"divergence": eb.KL(), "optimizer": eb.Adam(lr=1e-3), "hypergradient": implicit}
    return eb.BiSM(energy=energy, posterior=posterior, objective=objective, **parts)


@pytest.mark.parametrize(
    ("model", "posterior"), [(eb.GRBM, eb.BernoulliPosterior), (eb.GaussianLatentModel, eb.LinearGaussianPosterior)]
)
def test_information_is_the_hessian_of_the_exact_kl(float64, model, posterior):
    torch.manual_seed(0)
    method = at_the_true_posterior(model(v_dim=3, h_dim=4), posterior(v_dim=3, h_dim=4))
    v = torch.randn(7, 3)
    generator = torch.Generator().manual_seed(1)
    noise = method.fit.noise(v, 1, generator)
    data = {name: value[0] for name, value in noise["data"].items()}
    points = method.objective.perturb(v, data)

    def lower(theta, phi, i):
        q = posterior(v_dim=3, h_dim=4)
        truth = type(latent_distribution(q, points))(*eb.bind(q, phi).distribution_params(points))
        kl = truth.divergences(latent_distribution(method.energy, points))["posterior_kl"]
        return (method.objective.lower_weight(data) * kl).mean()

    phi = eb.params_of(method.posterior)
    w = {name: torch.randn_like(value) for name, value in phi.items()}
    expected = hessian_product(eb.BilevelProblem(None, lower, None, {}, 0.1), {}, phi, w)
    product = method.fit.information_product(phi, w, v, noise)
    torch.testing.assert_close(product, expected, rtol=1e-10, atol=1e-12)


def test_an_iteration_with_the_information_moves_theta_through_phi(float64):
    torch.manual_seed(0)
    method = at_the_true_posterior(eb.GRBM(v_dim=3, h_dim=4), eb.BernoulliPosterior(v_dim=3, h_dim=4))
    v = torch.randn(50, 3)
    noise = method.draw_noise(v, torch.Generator().manual_seed(1))
    grads = found(method, start(method), v, noise)["upper"][0].grads
    # The parameter c does not appear in the surrogate score, so that its whole gradient is the indirect term, through
    # phi.
    assert grads["c"].abs().min() > 0


@pytest.mark.parametrize("divergence", [eb.Fisher(), eb.IWAE(n_particles=5)])
def test_the_information_is_refused_for_other_divergences(divergence):
    lower = eb.LowerLevel(None, None, divergence, eb.Adam(lr=1e-3))
    with pytest.raises(
        eb.ConfigError, match="curvature=fisher is the curvature of divergence=kl: use curvature=hessian"
    ):
        Implicit(curvature="fisher").check(lower)


def test_the_information_is_as_precise_as_the_points():
    """Compare the mean over three equal examples with the value for one example.

    The two would differ if 1/3 were rounded to the default precision.
    """
    method = at_the_true_posterior(eb.GRBM(v_dim=3, h_dim=4), eb.BernoulliPosterior(v_dim=3, h_dim=4)).double()
    method.fit.objective = eb.SM()
    v = torch.randn(1, 3, dtype=torch.float64)
    phi = eb.params_of(method.posterior)
    w = {name: torch.randn_like(value) for name, value in phi.items()}
    noise = method.fit.noise(v, 1, torch.Generator())
    one, three = (method.fit.information_product(phi, w, x, noise) for x in (v, v.expand(3, 3)))
    torch.testing.assert_close(three, one, rtol=1e-14, atol=1e-14)
