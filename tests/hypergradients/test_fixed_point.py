"""Tests of the fixed-point hypergradient: where it is exact, how fast its error falls, and the terms that it needs."""

import itertools

import pytest
import torch

import eblvm_lit as eb
from cases import H_DIM, INFERRED, OBJECTIVES, PAIRED_OBJECTIVES, V_DIM, randomise
from eblvm_lit.core.functional import bind, grad, params_of, plain_autograd
from eblvm_lit.core.seeding import keyed_generator

pytestmark = pytest.mark.usefixtures("float64")
GRBMS = [case for case in INFERRED if case.name.startswith("grbm")]
every_objective = pytest.mark.parametrize("objective", [*OBJECTIVES, *PAIRED_OBJECTIVES], ids=str)


def flat(params):
    return torch.cat([p.flatten() for p in params.values()])


def bism(energy, posterior, objective, hypergradient, n_particles=1):
    parts = {"energy": energy, "posterior": posterior, "objective": objective, "divergence": eb.KL()}
    options = {"n_particles": n_particles, "optimizer": eb.Adam(lr=0.1), "compile": False}
    return eb.BiSM(hypergradient=hypergradient, **parts, **options)


def estimate(energy, posterior, objective, hypergradient, v, n_particles=1):
    """Return J, the estimated hypergradient, and the gradient of J for the exact marginal, all with the same noise."""
    method = bism(energy, posterior, objective, hypergradient, n_particles)
    state = method.live_state()
    noise = method.draw_noise(v, keyed_generator(3))
    state = state._replace(optimizers={"lower": method.lower_optimizer.init(state.phi)}, lrs={"lower": 0.1})
    theta = params_of(energy)
    value, found, _ = method.hypergradient(method.bilevel_problem(state, v, noise), theta, state.phi, state.buffers)

    def marginal(theta):
        points = objective.perturb(v, noise["upper"]["data"])
        return objective.loss(eb.ExactScore(bind(energy, theta)), points, noise["upper"]["data"]).mean()

    exact = {} if getattr(energy, "free_energy", None) is None else grad(marginal)(theta)
    return value, found, exact


@pytest.mark.parametrize("case", GRBMS, ids=str)
@every_objective
def test_the_fixed_point_of_a_grbm_is_the_gradient_of_the_exact_marginal_at_any_phi(objective, case):
    energy = case.make()
    v = torch.randn(8, V_DIM)
    posterior = randomise(eb.BernoulliPosterior(v_dim=V_DIM, h_dim=H_DIM))
    _, found, exact = estimate(energy, posterior, objective.make(), eb.FixedPoint(), v)
    torch.testing.assert_close(flat(found), flat(exact), rtol=1e-10, atol=1e-10)
    with plain_autograd():
        _, plain, _ = estimate(energy, posterior, objective.make(), eb.FixedPoint(), v)
    torch.testing.assert_close(flat(plain), flat(exact), rtol=1e-10, atol=1e-10)
    _, direct, _ = estimate(energy, posterior, objective.make(), eb.Unroll(n_unroll=0), v)
    assert torch.linalg.vector_norm(flat(direct) - flat(exact)) > 0.02 * torch.linalg.vector_norm(flat(exact))


@pytest.mark.parametrize("value", ["phi", "step"])
@pytest.mark.parametrize("case", [case for case in INFERRED if not case.binary], ids=str)
@pytest.mark.parametrize("objective", [OBJECTIVES[0], OBJECTIVES[5], *PAIRED_OBJECTIVES], ids=str)
def test_the_fixed_point_is_the_gradient_of_the_exact_marginal_at_the_exact_posterior(objective, case, value):
    energy = case.make()
    v = torch.randn(8, V_DIM)
    for precision in ("fixed", "stepped") if energy.continuous else ("fixed",):
        hypergradient = eb.FixedPoint(value=value, precision=precision)
        _, found, exact = estimate(energy, case.exact_posterior(energy), objective.make(), hypergradient, v)
        torch.testing.assert_close(flat(found), flat(exact), rtol=1e-10, atol=1e-10)


def test_steps_of_the_mean_only_need_the_right_width():
    case = next(case for case in INFERRED if case.make().continuous)
    energy = case.make()
    v = torch.randn(8, V_DIM)
    posterior = case.exact_posterior(energy)
    with torch.no_grad():
        posterior.log_std -= 0.3
    errors = {}
    for precision, n in itertools.product(("fixed", "stepped"), (1, 8)):
        hypergradient = eb.FixedPoint(n_steps=n, precision=precision)
        found, exact = map(flat, estimate(energy, posterior, OBJECTIVES[5].make(), hypergradient, v)[1:])
        errors[precision, n] = (found - exact).norm() / exact.norm()
    assert errors["fixed", 8] > 0.5 * errors["fixed", 1] > 0.01
    assert errors["stepped", 8] < 1e-6


def test_with_value_phi_the_loss_is_that_of_phi():
    energy = GRBMS[0].make()
    v = torch.randn(8, V_DIM)
    posterior = randomise(eb.BernoulliPosterior(v_dim=V_DIM, h_dim=H_DIM))
    for objective in (OBJECTIVES[0], OBJECTIVES[5]):
        rules = eb.FixedPoint(value="phi"), eb.Unroll(n_unroll=0), eb.FixedPoint()
        values = [estimate(energy, posterior, objective.make(), rule, v)[0] for rule in rules]
        torch.testing.assert_close(values[0], values[1], rtol=1e-12, atol=1e-12)
        assert abs(values[2] - values[1]) > 1e-3


def test_several_latents_and_damped_steps_reach_the_same_limit():
    energy = GRBMS[0].make()
    v = torch.randn(8, V_DIM)
    objective = OBJECTIVES[5].make()
    posterior = randomise(eb.BernoulliPosterior(v_dim=V_DIM, h_dim=H_DIM))
    _, several, exact = estimate(energy, posterior, objective, eb.FixedPoint(), v, n_particles=3)
    torch.testing.assert_close(flat(several), flat(exact), rtol=1e-10, atol=1e-10)
    errors = []
    # The fixed-point map T does not depend on the logits here. Each step of length 1/2 therefore halves the distance of
    # the logits from the fixed point, and with it the error.
    for n in (1, 2, 3):
        damped = eb.FixedPoint(n_steps=n, step_size=0.5, value="phi")
        _, found, exact = estimate(energy, GRBMS[0].exact_posterior(energy), objective, damped, v)
        _, direct, _ = estimate(energy, GRBMS[0].exact_posterior(energy), objective, eb.Unroll(n_unroll=0), v)
        expected = flat(exact) + 0.5**n * (flat(direct) - flat(exact))
        torch.testing.assert_close(flat(found), expected, rtol=1e-9, atol=1e-9)
        errors.append(torch.linalg.vector_norm(flat(found) - flat(exact)))
    assert errors[0] > errors[1] > errors[2] > 0.01


class MeanField(eb.BernoulliPosterior):
    """The factorised posterior that fits each v best, found by 80 fixed-point iterations.

    Its own parameters have no effect.
    """

    def __init__(self, energy):
        super().__init__(v_dim=V_DIM, h_dim=energy.h_dim)
        self.__dict__["held"] = energy

    def distribution_params(self, v):
        logits = torch.zeros(len(v), self.h_dim)
        of_v = self.held.c + v @ self.held.coupling()
        interactions = self.held.interactions()
        for _ in range(80):
            logits = of_v + logits.sigmoid() @ interactions
        return (logits,)


def exact_of_mean_field(energy, objective, points, noise):
    """Differentiate J(theta, q*(theta)) with respect to theta through the 80 iterations that compute q*."""

    def loss(theta):
        at = bind(energy, theta)
        score = eb.BilevelScore(at, MeanField(at), points, noise["latent"][0])
        return objective.loss(score, points, noise["data"]).mean()

    return grad(loss)(params_of(energy))


def test_the_error_falls_with_the_number_of_steps_at_the_rate_of_the_contraction():
    energy = randomise(eb.CoupledGRBM(v_dim=V_DIM, h_dim=6), 0.5)
    v = torch.randn(6, V_DIM)
    rule = OBJECTIVES[5].make()
    noise = bism(energy, MeanField(energy), rule, eb.FixedPoint()).draw_noise(v, keyed_generator(3))["upper"]
    points = rule.perturb(v, noise["data"])
    reference = flat(exact_of_mean_field(energy, rule, points, noise))
    errors = []
    for n in (1, 16, 28):
        _, found, _ = estimate(energy, MeanField(energy), rule, eb.FixedPoint(n_steps=n, value="phi"), v)
        errors.append(torch.linalg.vector_norm(flat(found) - reference))
    q = MeanField(energy).mean(points)
    # the Jacobian of the fixed-point map T with respect to the logits, for each v
    slopes = energy.interactions() * (q * (1 - q)).unsqueeze(1)
    contraction = torch.linalg.eigvals(slopes).abs().max().item()
    assert 0.1 < contraction < 0.9
    # The logits converge as contraction(v)^n. The score differentiates this power with respect to v, which gives a
    # factor n. From 16 to 28 steps the error may therefore fall more slowly, by the factor 28 / 16.
    rate = (errors[2] / errors[1]).item() ** (1 / 12)
    assert 0.9 * contraction < rate < contraction * (28 / 16) ** (1 / 12)
    assert errors[0] < 0.7 * torch.linalg.vector_norm(reference)
    # The posterior is at the fixed point, where the steps change nothing. Both options of ``value`` therefore give the
    # same J and the same gradient.
    for n in (1, 3):
        pair = [
            estimate(energy, MeanField(energy), rule, eb.FixedPoint(n_steps=n, value=x), v) for x in ("phi", "step")
        ]
        torch.testing.assert_close(pair[0][0], pair[1][0])
        torch.testing.assert_close(flat(pair[0][1]), flat(pair[1][1]), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("n_particles", [0, 4])
def test_a_step_of_gaussian_latents_on_a_quadratic(n_particles):
    curvature = torch.tensor([[2.0, 0.3], [0.3, 0.5]])
    centre = torch.randn(2)
    posterior = eb.LinearGaussianPosterior(v_dim=2, h_dim=2)
    mean = torch.randn(5, 2)
    log_std = 0.3 * torch.randn(5, 2)

    def energy(h):
        return 0.5 * torch.einsum("...i,ij,...j->...", h - centre, curvature, h - centre)

    # The nodes eps have the mean and covariance of standard normal noise, so that means of quadratic functions over
    # them are exact.
    nodes = None
    if n_particles:
        nodes = 2**0.5 * torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]]).unsqueeze(1).expand(-1, 5, -1)
    variance = (2 * log_std).exp()
    slope = (mean - centre) @ curvature
    moved, same = posterior.natural_gradient_step((mean, log_std), energy, nodes)
    torch.testing.assert_close(moved, mean - variance * slope)
    assert torch.equal(same, log_std)
    for step_size in (1.0, 0.3):
        options = {"step_size": step_size, "move_precision": True}
        moved, narrowed = posterior.natural_gradient_step((mean, log_std), energy, nodes, **options)
        x = step_size * (variance * curvature.diagonal() - 1)
        precision = (1 + x + x**2 / 2) / variance
        torch.testing.assert_close((-2 * narrowed).exp(), precision)
        torch.testing.assert_close(moved, mean - step_size * slope / precision)


def test_the_precision_stays_positive_where_the_energy_curves_downwards():
    posterior = eb.LinearGaussianPosterior(v_dim=2, h_dim=2)
    zero = torch.zeros(5, 2)
    _, log_std = posterior.natural_gradient_step((zero, zero), lambda h: -3 * h.square().sum(-1), move_precision=True)
    assert torch.isfinite(log_std).all()
