"""Tests of the option lower_noise=shared, with which both levels use one noisy minibatch and one pass of the model.

Whole iterations are compared with their equations.
"""

import copy

import pytest
import torch

import eblvm_lit as eb
from cases import H_DIM, V_DIM, randomise
from eblvm_lit.core.functional import bind, plain_autograd
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.scores.particles import RefinedParticles
from helpers import iterating

pytestmark = pytest.mark.usefixtures("float64")

K = 3
N = 2
LOWER_LR = 0.002
UPPER_LR = 0.02
REFINED = RefinedParticles(n_refine_steps=2, step_size=0.01, noise_std=0.01)
BACKENDS = {"plain": plain_autograd, "torch.func": torch.enable_grad}


class CountedMLP(eb.MLP):
    """An MLP that counts its passes."""

    passes = 0

    def forward(self, v):
        CountedMLP.passes += 1
        return super().forward(v)


def grbm():
    return {
        "energy": randomise(eb.GRBM(v_dim=V_DIM, h_dim=H_DIM)),
        "posterior": randomise(eb.BernoulliPosterior(v_dim=V_DIM, h_dim=H_DIM, temperature=0.5)),
        "divergence": eb.KL(n_particles=2),
    }


def deep():
    q = eb.NetworkGaussianPosterior(network=eb.MLP(sizes=[V_DIM, 3]), h_dim=H_DIM)
    return {
        "energy": randomise(eb.DeepLatentEnergy(network=CountedMLP(sizes=[V_DIM, 5, 4]), h_dim=H_DIM, head_dim=6), 0.4),
        "posterior": randomise(q, 0.4),
        "divergence": eb.Fisher(),
    }


MODELS = {"grbm": grbm, "deep": deep}
OBJECTIVES = {
    "dsm": lambda: eb.DSM(noise_std=0.3),
    # MDSM also weights the points of the lower level.
    "mdsm": lambda: eb.MDSM(sigma_min=0.2, sigma_max=0.9, sigma0=0.5),
    "sm": lambda: eb.SM(),
}
HYPERGRADIENTS = {
    "none": lambda: eb.Unroll(n_unroll=0),
    "unroll": lambda: eb.Unroll(n_unroll=N),
    "fixed_point": lambda: eb.FixedPoint(),
    "fixed_point of phi": lambda: eb.FixedPoint(value="phi"),
    "implicit": lambda: eb.Implicit(n_terms=1),
}


def make(model, objective, hypergradient="none", **options):
    torch.manual_seed(0)
    return eb.BiSM(
        **MODELS[model](),
        objective=OBJECTIVES[objective](),
        optimizer=eb.SGD(lr=UPPER_LR),
        lower_optimizer=eb.SGD(lr=LOWER_LR),
        n_lower_steps=K,
        hypergradient=HYPERGRADIENTS[hypergradient](),
        **{"lower_noise": "shared", **options},
    )


def gradient(value, named, create_graph=False):
    found = torch.autograd.grad(value, list(named.values()), create_graph=create_graph, materialize_grads=True)
    return dict(zip(named, found, strict=True))


def leaves(module):
    return {name: p.detach().clone().requires_grad_() for name, p in module.named_parameters()}


class ByHand:
    """The losses of one iteration, computed from their equations at given points and with given weights."""

    def __init__(self, method, v, noise):
        self.method = method
        objective = method.objective
        data = noise["upper"]["data"]
        self.data = data
        if isinstance(objective, eb.DSM):
            self.x = v + objective.noise_std * data["eps"]
            self.weight = 1.0
        elif isinstance(objective, eb.MDSM):
            self.x = v + data["sigma"].unsqueeze(1) * data["eps"]
            self.weight = 1 / data["sigma"]
        else:
            self.x = v
            self.weight = 1.0

    def lower(self, theta, phi, eps):
        q = bind(self.method.posterior, phi)
        p = bind(self.method.energy, theta)
        h, log_q = q.rsample_and_log_prob(self.x, eps)
        if isinstance(self.method.fit.divergence, eb.KL):
            return (self.weight * (log_q + p.energy(self.x, h)).mean(0)).mean()
        q_params = q.distribution_params(self.x)
        partial = h.detach().requires_grad_() if not h.requires_grad else h.view_as(h)
        total = -p.energy(self.x, partial) - self.method.posterior.log_prob_given(q_params, partial)
        (gap,) = torch.autograd.grad(total.sum(), partial, create_graph=True)
        return (self.weight * 0.5 * gap.square().sum(-1).mean(0)).mean()

    def step(self, theta, q_params, x):
        """Return the parameters of q(h|x) after one natural-gradient step."""
        posterior = self.method.posterior
        p = bind(self.method.energy, theta)
        bits = isinstance(posterior, eb.BernoulliPosterior)
        h = q_params[0].sigmoid() if bits else q_params[0]
        h = h.view_as(h) if h.requires_grad else h.requires_grad_()
        (slope,) = torch.autograd.grad(p.energy(x, h).sum(), h, create_graph=True)
        return (-slope,) if bits else (q_params[0] - (2 * q_params[1]).exp() * slope, q_params[1])

    def score(self, theta, phi, eps, x, refine):
        """Return x and the surrogate score at x, for latents that are drawn at the noisy minibatch and then held
        fixed."""
        posterior = self.method.posterior
        q = bind(posterior, phi)
        p = bind(self.method.energy, theta)
        at = refine(theta, q.distribution_params(self.x), self.x)
        h = posterior.rsample_given(at, eps)
        y = x.detach().requires_grad_() if not x.requires_grad else x
        log_q = posterior.log_prob_given(refine(theta, q.distribution_params(y), y), h)
        return y, torch.autograd.grad((-p.energy(y, h) - log_q).sum(), y, create_graph=True)[0]

    def upper(self, theta, phi, noise, refine=lambda theta, q_params, x: q_params):
        y, s = self.score(theta, phi, noise["latent"][0], self.x.detach().requires_grad_(), refine)
        objective = self.method.objective
        data = self.data
        if isinstance(objective, eb.DSM):
            return 0.5 * (s + data["eps"] / objective.noise_std).square().sum(1).mean()
        if isinstance(objective, eb.MDSM):
            sigma = data["sigma"].unsqueeze(1)
            return 0.5 * (s / sigma + data["eps"] / objective.sigma0**2).square().sum(1).mean()
        trace = sum(torch.autograd.grad(s[:, i].sum(), y, create_graph=True)[0][:, i] for i in range(V_DIM))
        return (0.5 * s.square().sum(1) + trace).mean()

    def lower_steps(self, theta, phi, noise):
        held = {name: p.detach() for name, p in theta.items()}
        for eps in noise["latent"]:
            slope = gradient(self.lower(held, phi, eps), phi)
            phi = {name: (p - LOWER_LR * slope[name]).detach().requires_grad_() for name, p in phi.items()}
        return phi

    def hypergradient(self, name, theta, phi, noise):
        if name == "unroll":
            at = phi
            for eps in noise["unrolled"]["latent"]:
                slope = gradient(self.lower(theta, at, eps), at, create_graph=True)
                at = {key: p - LOWER_LR * slope[key] for key, p in at.items()}
            return gradient(self.upper(theta, at, noise), theta)
        if name == "fixed_point":
            return gradient(self.upper(theta, phi, noise, self.step), theta)
        if name == "fixed_point of phi":
            constant = {key: p.detach() for key, p in theta.items()}

            def refine(theta, q_params, x):
                moved = self.step(theta, q_params, x)
                same = self.step(constant, q_params, x)
                return tuple(q + (a - b) for q, a, b in zip(q_params, moved, same, strict=True))

            return gradient(self.upper(theta, phi, noise, refine), theta)
        # The first step of conjugate gradients gives w = -(g'g / g'Hg) g.
        if name == "implicit":
            g = gradient(self.upper(theta, phi, noise), phi)
            slope = gradient(self.lower(theta, phi, noise["unrolled"]["latent"][0]), phi, create_graph=True)
            along = sum((slope[key] * g[key]).sum() for key in g)
            hg = gradient(along, phi, create_graph=True)
            square, curvature = (sum((g[key] * x[key]).sum() for key in g) for x in (g, hg))
            scale = (square / curvature).detach() if curvature > 0 else 0.0
            mixed = gradient(along, theta)
            direct = gradient(self.upper(theta, phi, noise), theta)
            return {key: direct[key] - scale * mixed[key] for key in direct}
        return gradient(self.upper(theta, phi, noise), theta)


def by_hand(method, name, v, noise):
    """Return theta and phi after an iteration that is computed from its equations."""
    hand = ByHand(method, v, noise)
    theta = leaves(method.energy)
    phi = hand.lower_steps(theta, leaves(method.posterior), noise["lower"])
    found = hand.hypergradient(name, theta, phi, {**noise["upper"], "unrolled": noise["hypergradient"]})
    moved = {key: p.detach() - UPPER_LR * found[key] for key, p in theta.items()}
    return moved, {key: p.detach() for key, p in phi.items()}


def assert_close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
@pytest.mark.parametrize("hypergradient", HYPERGRADIENTS)
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("model", MODELS)
def test_an_iteration_with_shared_noise_is_its_equations(model, objective, hypergradient, backend):
    method = make(model, objective, hypergradient)
    v = torch.randn(5, V_DIM)
    before = copy.deepcopy(method.state_dict())
    noise = method.draw_noise(v, keyed_generator(0))
    theta, phi = by_hand(method, hypergradient, v, noise)
    with backend():
        end, _ = iterating.run(method, iterating.start(method), v, noise)
    assert_close(end.phi, phi)
    assert_close(end.theta, theta)
    assert all(torch.equal(p, before[name]) for name, p in method.state_dict().items())
    assert not any(p.requires_grad for p in (*end.theta.values(), *end.phi.values()))
    assert max((theta[name] - p).abs().max() for name, p in method.energy.named_parameters()) > 1e-4


def vages(model, objective, **options):
    torch.manual_seed(0)
    return eb.VaGES(
        **MODELS[model](),
        objective=OBJECTIVES[objective](),
        score=eb.VariationalScore(n_particles=2, particles=options.pop("particles", None)),
        optimizer=eb.SGD(lr=UPPER_LR),
        lower_optimizer=eb.SGD(lr=LOWER_LR),
        n_lower_steps=K,
        lower_noise="shared",
        **options,
    )


def vages_by_hand(method, v, noise):
    """Return theta and phi after an iteration of VaGES, with the gradient of every particle computed separately."""
    hand = ByHand(method, v, noise)
    theta = leaves(method.energy)
    phi = hand.lower_steps(theta, leaves(method.posterior), noise["lower"])
    p = bind(method.energy, theta)
    q = bind(method.posterior, phi)
    h = q.rsample(hand.x, noise["upper"]["latent"]).detach()
    score_set, mean_set, cov_set = h.split(2)
    x = hand.x.detach().requires_grad_()

    def slopes(latents):
        return [torch.autograd.grad(-p.energy(x, one).sum(), x, create_graph=True)[0] for one in latents]

    z = method.objective.cotangent(torch.stack(slopes(score_set)).mean(0).detach(), hand.x, hand.data).detach()
    total = sum((z * s).sum() for s in slopes(mean_set)) / 2
    s = torch.stack([(z * one).sum(1).detach() for one in slopes(cov_set)])
    # The covariance of L = 2 particles divides by L - 1 = 1.
    for weight, one in zip(s - s.mean(0), cov_set, strict=True):
        total = total - (weight * p.energy(x, one)).sum()
    found = gradient(total / len(v), theta)
    moved = {key: t.detach() - UPPER_LR * found[key] for key, t in theta.items()}
    return moved, {key: t.detach() for key, t in phi.items()}


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
@pytest.mark.parametrize("objective", ["dsm", "mdsm"])
@pytest.mark.parametrize("model", MODELS)
def test_an_iteration_of_vages_with_shared_noise_is_its_equations(model, objective, backend):
    method = vages(model, objective)
    v = torch.randn(5, V_DIM)
    noise = method.draw_noise(v, keyed_generator(0))
    theta, phi = vages_by_hand(method, v, noise)
    with backend():
        end, _ = iterating.run(method, iterating.start(method), v, noise)
    assert_close(end.phi, phi)
    assert_close(end.theta, theta)


@pytest.mark.parametrize(
    ("make_method", "n_shared", "n_fresh"),
    [
        (lambda **o: make("deep", "mdsm", "unroll", **o), 1, K + N + 1),
        (lambda **o: make("deep", "mdsm", "fixed_point", **o), 1, K + 2),
        (lambda **o: vages("deep", "mdsm", particles=REFINED, **o), 1, None),
    ],
    ids=["unroll", "fixed_point", "vages"],
)
def test_v_passes_through_the_network_once(make_method, n_shared, n_fresh):
    def passes(**options):
        method = make_method(**options)
        v = torch.randn(5, V_DIM)
        noise = method.draw_noise(v, keyed_generator(0))
        state = iterating.start(method)
        CountedMLP.passes = 0
        with plain_autograd():
            method.iteration(state, v, noise)
        return CountedMLP.passes

    assert passes() == n_shared
    if n_fresh is not None:
        assert passes(lower_noise="fresh") == n_fresh


def test_shared_noise_draws_one_minibatch_and_latents_for_each_step():
    method = make("grbm", "mdsm", "unroll")
    v = torch.randn(5, V_DIM)
    noise = method.draw_noise(v, keyed_generator(0))
    assert noise["lower"]["data"] == noise["hypergradient"]["data"] == {}
    assert noise["lower"]["latent"].shape == (K, 2, 5, H_DIM)
    assert not torch.equal(noise["lower"]["latent"][0], noise["lower"]["latent"][1])
