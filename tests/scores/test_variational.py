"""Tests of VaES and VaGES: their expectations over all latent states equal autograd of the enumerated marginal."""

import pytest
import torch

import eblvm_lit as eb
from cases import ENERGIES, H_DIM, INFERRED, V_DIM, binary, randomise
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.evaluation.latent_distributions import latent_distribution
from eblvm_lit.evaluation.studies.score_bias import _mean_variance, bias_bounds, bias_norms
from eblvm_lit.scores.particles import ExactParticles, Particles, RefinedParticles
from eblvm_lit.scores.variational import (
    Biased,
    ControlledVaES,
    Dropped,
    Unbiased,
    VaES,
    VariationalFunction,
    VariationalScore,
    vages_product,
)
from helpers import iterating

pytestmark = pytest.mark.usefixtures("float64")

GRBMS = [case for case in ENERGIES if case.name.startswith("grbm")]
GAUSSIAN = next(case for case in ENERGIES if case.name == "gaussian-latent")
every_grbm = pytest.mark.parametrize("case", GRBMS[:2], ids=str)
OBJECTIVES = {
    "dsm": lambda: eb.DSM(noise_std=0.3),
    "mdsm": lambda: eb.MDSM(sigma_min=0.2, sigma_max=0.9, sigma0=0.3, ladder="geometric"),
    "ksd": lambda: eb.KSD(bandwidth=0.7),
    "ksd-all": lambda: eb.KSD(bandwidth=0.7, pairs="all"),
    "ksd-median": lambda: eb.KSD(bandwidth="median"),
}
REFINED = RefinedParticles(n_refine_steps=1, step_size=0.1, noise_std=0.0)
every_objective = pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)


class Enumerated(Particles):
    """Particles that enumerate all latent states, in each of the three sets of particles."""

    needs_posterior = False

    def noise(self, energy, posterior, shape, v, generator):
        return None

    def draw(self, energy, posterior, v, noise):
        return binary(H_DIM).repeat(3, 1).unsqueeze(1).expand(-1, len(v), -1)


def probabilities(logits):
    """Compute q(h|v) of each state, shape (2^m, B)."""
    p = logits.sigmoid()
    h = binary(H_DIM).unsqueeze(1)
    return (h * p + (1 - h) * (1 - p)).prod(-1)


def expected_estimates(energy, logits, v, z, covariance):
    """Compute the mean of VaES, and the theta-gradient of z' times the mean of VaGES, over all pairs of particles (L =
    2).

    The code assumes equally likely particles. Therefore every pair of states is a set of two, which is weighted
    afterwards, and an example is copied once for each pair.
    """
    w = probabilities(logits.detach())
    h = binary(H_DIM)
    first, second = torch.cartesian_prod(torch.arange(len(h)), torch.arange(len(h))).unbind(1)
    sets = torch.stack([h[first], h[second]], 1).unsqueeze(2).expand(-1, -1, len(v), -1)
    score = sum(w[i].unsqueeze(-1) * VaES()(energy, None, v, h[i].expand(1, len(v), -1)) for i in range(len(h)))

    def product(theta):
        view = eb.bind(energy, theta)
        of_pairs = torch.func.vmap(lambda pair: vages_product(view, v, z, pair, pair, covariance))(sets)
        return (w[first] * w[second] * of_pairs).sum()

    total = torch.func.grad(product)(eb.params_of(energy))
    return score, total


def exact_gradient(energy, v, z):
    """Compute the theta-gradient of z' s(v) by autograd of the marginal, summed over all latents."""
    h = binary(H_DIM).unsqueeze(1)

    def product(theta):
        view = eb.bind(energy, theta)
        s = torch.func.grad(lambda x: torch.logsumexp(-view.energy(x, h.expand(-1, len(x), -1)), 0).sum())(v)
        return (s * z).sum()

    return torch.func.grad(product)(eb.params_of(energy))


@every_grbm
def test_estimates_with_the_exact_posterior_are_score_and_gradient(case):
    energy = case.make()
    v = torch.randn(4, V_DIM)
    z = torch.randn(4, V_DIM)
    score, gradient = expected_estimates(energy, energy.latent_logits(v), v, z, Unbiased())
    torch.testing.assert_close(score, energy.score(v), rtol=1e-10, atol=1e-10)
    exact = exact_gradient(energy, v, z)
    torch.testing.assert_close(gradient, exact, rtol=1e-10, atol=1e-10)
    # The parameter c has a gradient only through the covariance, and its exact gradient is not small.
    assert exact["c"].abs().max() > 1e-2
    biased, dropped = (expected_estimates(energy, energy.latent_logits(v), v, z, c())[1] for c in (Biased, Dropped))
    torch.testing.assert_close(biased["c"], exact["c"] / 2)  # the biased estimate is (L - 1) / L of the exact one
    torch.testing.assert_close(dropped["c"], torch.zeros_like(exact["c"]))


@every_grbm
def test_estimates_with_a_wrong_posterior_have_the_bias_of_the_closed_form(case):
    energy = case.make()
    v = torch.randn(4, V_DIM)
    z = torch.randn(4, V_DIM)
    q = randomise(eb.BernoulliPosterior(v_dim=V_DIM, h_dim=H_DIM))
    mean = q.mean(v).detach()
    U = energy.coupling().detach()
    score, gradient = expected_estimates(energy, q.logits(v), v, z, Unbiased())
    # With a wrong posterior q, the expected score is -(v - b) / sigma^2 + W q.
    expected = (energy.b - v) * (-2 * energy.log_std).exp() + mean @ U.T
    torch.testing.assert_close(score, expected.detach(), rtol=1e-10, atol=1e-10)
    # The covariance of the derivatives of l = -E with respect to v and c is U diag(q (1 - q)). Only for q = p is it the
    # derivative of the score with respect to c.
    torch.testing.assert_close(gradient["c"], ((z @ U) * mean * (1 - mean)).sum(0), rtol=1e-10, atol=1e-10)
    assert (score - energy.score(v)).abs().min() > 1e-4
    assert (gradient["c"] - exact_gradient(energy, v, z)["c"]).abs().max() > 1e-3


def test_gaussian_estimates_are_exact_up_to_degree_two():
    # The derivatives of the energy are linear in h. It is therefore enough that pairs of symmetric nodes have the mean
    # and the covariance of p(h|v).
    case = GAUSSIAN
    energy = case.make()
    v = torch.randn(4, V_DIM)
    z = torch.randn(4, V_DIM)
    nodes = torch.eye(H_DIM) * H_DIM**0.5
    h = energy.latent_mean(v).detach() + torch.cat([nodes, -nodes]).unsqueeze(1)
    torch.testing.assert_close(VaES()(energy, None, v, h), energy.score(v).detach())
    found = torch.func.grad(lambda t: vages_product(eb.bind(energy, t), v, z, h, h, Biased()).sum())(
        eb.params_of(energy)
    )
    exact = torch.func.grad(lambda t: (eb.bind(energy, t).score(v) * z).sum())(eb.params_of(energy))
    torch.testing.assert_close(found, exact, rtol=1e-9, atol=1e-9)


@every_objective
@every_grbm
def test_method_with_all_latents_has_the_gradient_of_the_exact_method(case, objective):
    """Check that the upper level with enumerated latents has the gradient of the exact marginal."""
    energy = case.make()
    v = torch.randn(6, V_DIM)
    objective = objective()

    class Weighted(VaES):
        def __call__(self, energy, posterior, v, h):
            w = probabilities(energy.latent_logits(v).detach())
            return torch.func.grad(lambda x: -(w * energy.energy(x, h)).sum())(v)

    class Exact(VariationalScore):
        """An estimator that replaces means over particles by sums over h with the weights of p(h|v)."""

        def function(self, *args):
            return Summed(*vars(super().function(*args)).values())

    class Summed(VariationalFunction):
        """The function that :class:`Exact` returns."""

        def __init__(self, estimator, energy, posterior, *sets):
            super().__init__(estimator, energy, posterior, sets)

        def product(self, energy, v, z):
            w = probabilities(energy.latent_logits(v).detach())
            value, slope = torch.func.jvp(lambda x: -energy.energy(x, self.h_mean), (v,), (z.detach(),))
            s = slope.detach()
            return (w * slope).sum(0) + (w * (s - (w * s).sum(0)) * value).sum(0)

    score = Exact(n_particles=2**H_DIM, particles=Enumerated(), estimate=Weighted())
    method = eb.VaGES(energy=energy, objective=objective, score=score, optimizer=eb.Adam(lr=1e-3))
    noise = {"data": objective.noise(v, (), keyed_generator(0)), "latent": None}
    (step,) = iterating.found(method, iterating.start(method), v, {method.level: noise})[method.level]
    points = objective.perturb(v, noise["data"])
    loss = lambda t: objective.loss(eb.ExactScore(eb.bind(energy, t)), points, noise["data"]).mean()  # noqa: E731
    torch.testing.assert_close(step.loss, loss(eb.params_of(energy)))
    torch.testing.assert_close(step.grads, torch.func.grad(loss)(eb.params_of(energy)), rtol=1e-10, atol=1e-10)
    assert all(value.abs().max() > 1e-4 for value in step.grads.values())


def test_particle_sets_are_shared_or_separate_as_named():
    energy = GRBMS[0].make()
    q = randomise(eb.BernoulliPosterior(v_dim=V_DIM, h_dim=H_DIM))
    v = torch.randn(5, V_DIM)
    for sets, distinct in (("separate", 3), ("coupled", 2), ("shared", 1)):
        score = VariationalScore(n_particles=4, sets=sets)
        drawn = score.function(energy, q, v, score.noise(energy, q, v, keyed_generator(0)))
        drawn = (drawn.h, drawn.h_mean, drawn.h_cov)
        assert [h.shape for h in drawn] == [(4, 5, H_DIM)] * 3
        assert len({h.sum().item() for h in drawn}) == distinct
        assert torch.equal(drawn[1], drawn[2]) == (sets != "separate")
        assert torch.equal(drawn[0], drawn[1]) == (sets == "shared")


@pytest.mark.parametrize("case", INFERRED, ids=str)
def test_control_variate_has_no_variance_at_the_exact_posterior_and_no_bias_anywhere(case):
    energy = case.make()
    v = torch.randn(5, V_DIM)
    q = case.exact_posterior(energy)
    h = torch.randn(1, 5, H_DIM)
    for particles in (h, 3 * h, torch.cat([h, 1 - h])):
        found = ControlledVaES()(energy, q, v, particles)
        torch.testing.assert_close(found, energy.score(v).detach(), rtol=1e-10, atol=1e-10)
    assert (VaES()(energy, q, v, h) - energy.score(v)).abs().max() > 1e-2
    if case in GRBMS:  # for any q, both estimates have the same mean
        q = randomise(q)
        w = probabilities(q.logits(v).detach())
        states = binary(H_DIM)
        means = [
            sum(w[i].unsqueeze(-1) * estimate(energy, q, v, states[i].expand(1, 5, -1)) for i in range(len(states)))
            for estimate in (VaES(), ControlledVaES())
        ]
        torch.testing.assert_close(means[0].detach(), means[1].detach(), rtol=1e-10, atol=1e-10)


def make(score=None, objective=None):
    return eb.VaGES(
        energy=GRBMS[0].make(),
        posterior=randomise(eb.BernoulliPosterior(v_dim=V_DIM, h_dim=H_DIM)),
        divergence=eb.KL(),
        objective=objective or eb.DSM(noise_std=0.3),
        score=score or VariationalScore(n_particles=2),
        optimizer=eb.Adam(lr=1e-3),
    )


def test_exact_particles_are_distributed_as_the_latents():
    energy = GRBMS[0].make()
    v = torch.randn(5, V_DIM)
    particles = ExactParticles()
    h = particles.draw(energy, None, v, particles.noise(energy, None, (20_000,), v, keyed_generator(0)))
    assert set(h.unique().tolist()) == {0.0, 1.0}
    assert (h.mean(0) - energy.latent_mean(v)).abs().max() < 4 * 0.5 / 20_000**0.5
    method = make(VariationalScore(particles=particles))
    assert list(method.groups) == ["model"]
    assert method.posterior is None
    assert list(method.networks()) == ["theta"]


def test_refined_particles_go_to_the_posterior():
    energy = GAUSSIAN.make()
    v = torch.randn(3, V_DIM)
    q = randomise(eb.LinearGaussianPosterior(v_dim=V_DIM, h_dim=H_DIM), 2.0)
    mean = energy.latent_mean(v)
    for n in (1, 4):
        particles = RefinedParticles(n_refine_steps=n, step_size=0.2, noise_std=0.3)
        noise = particles.noise(energy, q, (2,), v, keyed_generator(0))
        start = q.rsample(v, noise["start"])
        h = particles.draw(energy, q, v, noise)
        kicks = sum(0.9 ** (n - 1 - i) * 0.3 * eps for i, eps in enumerate(noise["steps"]))
        torch.testing.assert_close(h, mean + 0.9**n * (start - mean) + kicks)
        assert not h.requires_grad


def test_the_logged_loss_is_the_objective_at_vaes_and_not_the_surrogate():
    method = make()
    v = torch.randn(6, V_DIM)
    noise = method.draw_noise(v, keyed_generator(0))
    (step,) = iterating.found(method, iterating.start(method), v, noise)["upper"]
    upper = noise["upper"]
    points = method.objective.perturb(v, upper["data"])
    h = method.score.function(method.energy, method.posterior, points, upper["latent"]).h
    s = VaES()(method.energy, None, points, h)
    expected = 0.5 * (s + upper["data"]["eps"] / 0.3).square().sum(-1).mean()
    torch.testing.assert_close(step.loss, expected.detach())


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: VariationalScore(n_particles=1), "n_particles"),
        (lambda: VariationalScore(particles=ExactParticles(), estimate=ControlledVaES()), "estimate=vaes"),
        (lambda: make(VariationalScore(particles=REFINED)), "binary"),
        (lambda: make(objective=eb.SM()), "derivative of the score by v"),
    ],
)
def test_bad_input(build, words):
    with pytest.raises(eb.ConfigError, match=words):
        build()


def test_biases_of_the_study_are_those_of_the_estimates():
    case = GRBMS[0]
    energy = case.make()
    v = torch.randn(1, V_DIM)
    q = randomise(eb.BernoulliPosterior(v_dim=V_DIM, h_dim=H_DIM))

    def estimates(logits):
        rows = [expected_estimates(energy, logits, v, z.unsqueeze(0), Unbiased()) for z in torch.eye(V_DIM)]
        return rows[0][0], torch.cat([torch.stack([row[1][name].flatten() for row in rows], 1) for name in ("W", "c")])

    wrong = estimates(q.logits(v))
    right = estimates(energy.latent_logits(v))
    vaes, vages = (torch.linalg.vector_norm(a - b) for a, b in zip(wrong, right, strict=True))
    moments = [_mean_variance(latent_distribution(model, v)) for model in (energy, q)]
    found = bias_norms(energy.coupling(), v.squeeze(0), *moments)
    torch.testing.assert_close(found[0], vaes, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found[1], vages, rtol=1e-10, atol=1e-10)
    kl = latent_distribution(q, v).divergences(latent_distribution(energy, v))["posterior_kl"].squeeze()
    assert all(a < b for a, b in zip(found, bias_bounds(energy.coupling(), v.squeeze(0), kl, binary=True), strict=True))
