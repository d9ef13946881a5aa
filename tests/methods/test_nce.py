"""Noise-contrastive estimation, its variational form, and the noise distributions."""

import logging
import math
from contextlib import nullcontext

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from cases import H_DIM, INFERRED, NOISE_DISTRIBUTIONS, SUMMED, V_DIM, binary, make_fitted_normal, randomise
from eblvm_lit.core.functional import plain_autograd
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.divergences.fisher import Fisher
from eblvm_lit.divergences.kl import KL
from eblvm_lit.energies.base import Energy
from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
from eblvm_lit.energies.grbm import GRBM
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.nce import NCE
from eblvm_lit.methods.snl import SNL
from eblvm_lit.methods.vnce import VNCE
from eblvm_lit.methods.vsnl import VSNL
from eblvm_lit.noise_distributions.normal import FittedNormal, StandardNormal
from eblvm_lit.optimizers.adam import Adam
from eblvm_lit.optimizers.sgd import SGD
from eblvm_lit.posteriors.bernoulli import BernoulliPosterior
from eblvm_lit.posteriors.gaussian import LinearGaussianPosterior
from helpers import iterating
from helpers.shell import checkpoint, curves, evaluate, of_checkpoint, same_state, train

every_noise_distribution = pytest.mark.parametrize("noise_case", NOISE_DISTRIBUTIONS, ids=str)
every_energy = pytest.mark.parametrize("energy_case", SUMMED, ids=str)
every_backend = pytest.mark.parametrize("backend", [nullcontext, plain_autograd])


def nce(energy, p_n=None, **options):
    return NCE(
        energy=energy,
        noise_distribution=p_n or StandardNormal(),
        optimizer=SGD(lr=0.1),
        seed=1,
        **options,
    )


def vnce(energy, posterior=None, p_n=None, **options):
    parts = {} if posterior is None else {"posterior": posterior, "divergence": KL()}
    options = {"optimizer": SGD(lr=0.1), "seed": 1, **parts, **options}
    return VNCE(energy=energy, noise_distribution=p_n or StandardNormal(), **options)


def live_state(method):
    """The live parameters, through which autograd differentiates what the method computes."""
    params = {name: dict(network.named_parameters()) for name, network in method.networks().items()}
    return method.live_state()._replace(params=params)


def terms_of(method, v, noise):
    """Both terms of the loss at the live parameters."""
    return method.terms(live_state(method), v, noise)


# --- noise distributions ----------------------------------------------------------------------------------


def skewed(n, d, seed=0):
    """Correlated data far from the origin."""
    x = torch.randn(n, d, generator=keyed_generator(seed))
    return x @ torch.randn(d, d, generator=keyed_generator(seed + 1)) + torch.arange(1.0, d + 1)


@every_noise_distribution
def test_density_is_torchs_and_samples_have_that_density(noise_case, float64):
    p_n = noise_case.make()
    truth = noise_case.truth(p_n)
    y = skewed(7, V_DIM)
    torch.testing.assert_close(p_n.log_prob(y), truth.log_prob(y))
    # a sample is an affine map of standard normal noise: its offset is the mean, its matrix gives the covariance
    origin, basis = p_n.sample(torch.zeros(1, V_DIM)), p_n.sample(torch.eye(V_DIM))
    jacobian = (basis - origin).T
    torch.testing.assert_close(origin[0], truth.mean)
    torch.testing.assert_close(jacobian @ jacobian.T, truth.covariance_matrix)
    shape = p_n.noise((3,), y, keyed_generator(0)).shape
    assert shape == (3, 7, V_DIM)


def test_a_fitted_normal_has_the_moments_of_the_data(float64):
    v = skewed(500, 4)
    p_n = FittedNormal()
    p_n.prepare((4,))
    p_n.fit(v.split(130))  # batches of unequal size
    torch.testing.assert_close(p_n.mean, v.mean(0))
    covariance = p_n.axes @ torch.diag(p_n.std.square()) @ p_n.axes.T
    torch.testing.assert_close(covariance, v.T.cov(correction=0))
    truth = torch.distributions.MultivariateNormal(v.mean(0), v.T.cov(correction=0))
    torch.testing.assert_close(p_n.log_prob(v), truth.log_prob(v))
    rows = p_n.sample(torch.eye(4)) - p_n.sample(torch.zeros(4, 4))  # of four dimensions: Q of two may be symmetric
    torch.testing.assert_close(rows.T @ rows, covariance)
    fitted = covariance.clone()
    p_n.fit([v + 1])  # a fitted distribution, as from a checkpoint, is not fitted again
    torch.testing.assert_close(p_n.axes @ torch.diag(p_n.std.square()) @ p_n.axes.T, fitted)
    torch.testing.assert_close(p_n.mean, v.mean(0))


@pytest.mark.parametrize("kind", [NCE, VNCE, SNL, VSNL])
def test_a_method_keeps_a_fit_that_was_made_before(kind):
    p_n = make_fitted_normal()
    kept = {name: x.clone() for name, x in p_n.state_dict().items()}
    kind(energy=GaussianLatentModel(v_dim=V_DIM, h_dim=H_DIM), noise_distribution=p_n, optimizer=Adam(lr=0.1))
    assert all(torch.equal(x, kept[name]) for name, x in p_n.state_dict().items())


def test_images_and_vectors_have_the_same_density_and_samples(float64):
    v = skewed(50, 6)
    flat, image = FittedNormal(), FittedNormal()
    for p_n, shape in ((flat, (6,)), (image, (1, 2, 3))):
        p_n.prepare(shape)
        p_n.fit([v.view(-1, *shape)])
    y = skewed(5, 6, seed=9)
    torch.testing.assert_close(image.log_prob(y.view(-1, 1, 2, 3)), flat.log_prob(y))
    noise = flat.noise((), y, keyed_generator(0))
    torch.testing.assert_close(image.sample(noise.view(-1, 1, 2, 3)).flatten(1), flat.sample(noise))


def test_directions_without_variance_get_min_std_and_the_log_says_so(float64, caplog):
    v = skewed(200, 3)
    v = torch.cat([v, torch.full((200, 1), 0.5), v[:, :1]], dim=1)  # a constant pixel, and a copy of the first
    p_n = FittedNormal(min_std=0.05)
    p_n.prepare((5,))
    with caplog.at_level(logging.INFO):
        p_n.fit([v])
    assert "2 of 5 directions are given min_std=0.05" in caplog.text
    torch.testing.assert_close(p_n.std[:2], torch.full((2,), 0.05))
    covariance = p_n.axes @ torch.diag(p_n.std.square()) @ p_n.axes.T
    dead = torch.eye(5)[3]
    copied = (torch.eye(5)[0] - torch.eye(5)[4]) / 2**0.5
    floor = 0.05**2 * (dead.outer(dead) + copied.outer(copied))
    torch.testing.assert_close(covariance, v.T.cov(correction=0) + floor)  # the other directions keep their variance
    assert p_n.log_prob(v).isfinite().all()


# --- NCE --------------------------------------------------------------------------------------------------


@every_energy
@pytest.mark.parametrize("nu", [1, 3])
def test_loss_is_the_cross_entropy_of_a_classifier(energy_case, nu, float64):
    energy, v = energy_case.make(), torch.randn(6, V_DIM)
    p_n = FittedNormal()
    p_n.prepare((V_DIM,))
    p_n.fit([skewed(50, V_DIM)])
    method = nce(energy, p_n, nu=nu)
    with torch.no_grad():
        method.model.c.fill_(0.7)
    noise = method.noise(v, keyed_generator(3))
    x = torch.cat([v, p_n.sample(noise["noise_distribution"].flatten(0, 1))])
    h, log_weight = energy_case.nodes(energy)
    summed = (log_weight.unsqueeze(-1) - energy.energy(x, h.unsqueeze(1).expand(-1, len(x), -1))).logsumexp(0)
    logits = summed - 0.7 - p_n.log_prob(x) - math.log(nu)
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
    energy = randomise(GRBM(v_dim=V_DIM, h_dim=H_DIM))
    p_n = noise_case.make()
    method = nce(energy, p_n, nu=nu)
    with torch.no_grad():
        energy.log_std.clamp_(-0.5, 0.3)
        method.model.c.copy_(energy.log_partition())
    axis = torch.linspace(-20, 20, 140)  # both densities vanish at its ends
    grid, cell = torch.cartesian_prod(axis, axis), (axis[1] - axis[0]) ** 2
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

    named = dict(method.model.named_parameters())
    least = expected_loss()
    grads = dict(zip(named, torch.autograd.grad(least, list(named.values())), strict=True))
    for name, p in named.items():
        assert grads[name].abs().max() < 1e-7, name
        for sign in (-1, 1):
            with torch.no_grad():
                p.add_(0.05 * sign)
            assert expected_loss() > least + 1e-6, name
            with torch.no_grad():
                p.sub_(0.05 * sign)


# --- VNCE -------------------------------------------------------------------------------------------------


@every_energy
@pytest.mark.parametrize("nu", [1, 2])
def test_with_the_true_posterior_the_loss_is_that_of_nce(energy_case, nu, float64):
    energy, v = energy_case.make(), torch.randn(6, V_DIM)
    plain, variational = nce(energy, nu=nu), vnce(energy, nu=nu)
    noise = variational.noise(v, keyed_generator(3))
    expected = terms_of(plain, v, noise)
    found = terms_of(variational, v, noise)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    assert list(variational.groups) == ["model"]
    assert variational.posterior is None
    if energy_case not in INFERRED:
        return
    # the same holds for any sample h of a posterior that equals p(h|v), relaxed ones included
    learned = vnce(energy, energy_case.exact_posterior(energy), nu=nu)
    noise = learned.noise(v, keyed_generator(3))
    for one, other in zip(terms_of(learned, v, noise), terms_of(plain, v, noise), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    assert learned.posterior is not None


def test_with_the_true_posterior_the_expected_gradient_of_the_data_term_is_that_of_nce(float64):
    energy, v = randomise(GRBM(v_dim=V_DIM, h_dim=H_DIM)), torch.randn(5, V_DIM)
    plain, variational = nce(energy), vnce(energy)
    noise = variational.noise(v, keyed_generator(3))
    named = dict(plain.model.named_parameters())

    def grads(model, term):
        parameters = [dict(model.named_parameters())[name] for name in named]
        return torch.autograd.grad(term.sum(), parameters, allow_unused=True)

    expected = grads(plain.model, terms_of(plain, v, noise)[0])
    p = energy.latent_mean(v).detach()
    total = [torch.zeros_like(x) for x in named.values()]
    for row in range(len(v)):
        for h in binary(H_DIM):
            weight = (h * p[row] + (1 - h) * (1 - p[row])).prod()
            u = h * p[row] / 2 + (1 - h) * (1 + p[row]) / 2  # noise that draws this h
            one = {
                "noise_distribution": noise["noise_distribution"][:, :1],
                "at_data": u.view(1, 1, -1),
                "at_noise": noise["at_noise"][:, :1],
            }
            term = terms_of(variational, v[row : row + 1], one)[0]
            for entry, g in zip(total, grads(variational.model, term), strict=True):
                entry += weight * g
    for found, value in zip(total, expected, strict=True):
        torch.testing.assert_close(found, value, rtol=1e-9, atol=1e-11)
        assert value.abs().max() > 1e-2


@every_backend
def test_the_true_posterior_is_a_constant_to_the_gradient(backend, float64):
    energy, v = randomise(GRBM(v_dim=V_DIM, h_dim=H_DIM)), torch.randn(5, V_DIM)
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
    loss = -at_data.mean() - 2 * at_noise.mean()
    torch.testing.assert_close(found.loss, loss.detach())
    named = dict(method.model.named_parameters())
    for name, value in zip(named, torch.autograd.grad(loss, list(named.values())), strict=True):
        torch.testing.assert_close(found.grads[name], value)


@every_backend
def test_upper_loss_by_hand(backend, float64):
    energy, q = randomise(GRBM(v_dim=V_DIM, h_dim=H_DIM)), randomise(BernoulliPosterior(v_dim=V_DIM, h_dim=H_DIM))
    v, method = torch.randn(6, V_DIM), vnce(energy, q, n_particles=5, nu=2)
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
    c, log_p_n = method.model.c, lambda x: -0.5 * x.square().sum(-1) - math.log(2 * math.pi)
    at_data = logsigmoid(log_weights(v, noise["at_data"][0]) - c - math.log(2) - log_p_n(v))
    at_noise = logsigmoid(c + math.log(2) + log_p_n(y) - bound)
    loss = -at_data.mean() - 2 * at_noise.mean()
    torch.testing.assert_close(found.loss, loss.detach())
    named = dict(method.model.named_parameters())
    assert found.grads.keys() == named.keys()
    for name, value in zip(named, torch.autograd.grad(loss, list(named.values())), strict=True):
        torch.testing.assert_close(found.grads[name], value)
        assert value.abs().max() > 1e-3


def test_bounds_are_below_the_log_density_and_rise_with_the_particles(float64):
    energy, v = randomise(GRBM(v_dim=V_DIM, h_dim=H_DIM)), torch.randn(6, V_DIM)
    q = randomise(BernoulliPosterior(v_dim=V_DIM, h_dim=H_DIM, temperature=0.0))
    p, states = q.mean(v).detach(), binary(H_DIM)
    u = [h * (1 - p / 2) + (1 - h) * (1 - p) / 2 for h in states]  # noise that draws each state
    weights = torch.stack([(h * p + (1 - h) * (1 - p)).prod(-1) for h in states])
    method, pair = vnce(energy, q, n_particles=1), vnce(energy, q, n_particles=2)
    p_n = {"noise_distribution": v.unsqueeze(0)}
    ones, losses, pairs = 0, 0, 0
    for i in range(len(states)):
        noise = {**p_n, "at_data": u[i].unsqueeze(0), "at_noise": u[i].unsqueeze(0)}
        one, _ = method.log_densities(live_state(method), v, v, noise)
        ones = ones + weights[i] * one
        losses = losses + weights[i] * terms_of(method, v, noise)[0]
        for j in range(len(states)):
            both = {**noise, "at_noise": torch.stack([u[i], u[j]])}
            two = pair.log_densities(live_state(pair), v, v, both)[1]
            pairs = pairs + weights[i] * weights[j] * two
    exact = nce(energy)
    assert (ones + 1e-3 < pairs).all()
    assert (pairs + 1e-3 < -energy.free_energy(v)).all()
    # so the term of the data is an upper bound of that of NCE
    assert (losses > terms_of(exact, v, p_n)[0] + 1e-3).all()


@pytest.mark.parametrize("nu", [1, 2])
def test_each_step_moves_its_own_parameters_alone(nu, float64):
    energy, q = randomise(GRBM(v_dim=V_DIM, h_dim=H_DIM)), randomise(BernoulliPosterior(v_dim=V_DIM, h_dim=H_DIM))
    method, v = vnce(energy, q, nu=nu, n_lower_steps=2), torch.randn(6, V_DIM)
    noise, start = method.draw_noise(v, keyed_generator(0)), iterating.start(method)
    found = iterating.found(method, start, v, noise)
    assert {name: len(steps) for name, steps in found.items()} == {"lower": 2, "upper": 1}
    for group, moves, stays in (("lower", "phi", "theta"), ("upper", "theta", "phi")):
        after, _ = iterating.run(method, start, v, noise, only=[group])
        assert all(not torch.equal(x, start.params[moves][k]) for k, x in after.params[moves].items())
        assert all(torch.equal(x, start.params[stays][k]) for k, x in after.params[stays].items())
    assert set(start.params["theta"]) == {"c", "energy.W", "energy.b", "energy.c", "energy.log_std"}
    # the lower loss is the KL divergence at the data, whatever c is
    with torch.no_grad():
        method.model.c.fill_(3.0)
    grads = iterating.found(method, iterating.start(method), v, noise)["lower"][1].grads
    loss = KL().loss(energy, q, v, noise["lower"]["latent"][1]).mean()
    expected = torch.autograd.grad(loss, list(q.parameters()))
    for (name, _), value in zip(q.named_parameters(), expected, strict=True):
        torch.testing.assert_close(grads[name], value)


# --- runs -------------------------------------------------------------------------------------------------


METHODS = {
    "nce": lambda energy: nce(energy),
    "nce-fitted": lambda energy: nce(energy, FittedNormal()),
    "vnce": lambda energy: vnce(
        energy, BernoulliPosterior(v_dim=V_DIM, h_dim=2), optimizer=Adam(lr=0.02), n_lower_steps=1
    ),
    "vnce-true": lambda energy: vnce(energy),
}


@pytest.mark.parametrize("start", [-0.6, 0.6])
@pytest.mark.parametrize("name", METHODS)
def test_a_few_steps_move_a_wrong_scale_towards_that_of_the_data(name, start, float64):
    energy = GRBM(v_dim=V_DIM, h_dim=2)
    with torch.no_grad():
        for p in energy.parameters():
            p.mul_(0.01)
        energy.log_std.fill_(start)
    method = METHODS[name](energy)
    method.optimizer = Adam(lr=0.02)
    method.noise_distribution.fit([1.5 * torch.randn(1000, V_DIM)])
    state = iterating.start(method)
    for i in range(60):
        v = torch.randn(100, V_DIM, generator=keyed_generator(0, "data", i))
        method.run_iteration(state, v, method.draw_noise(v, keyed_generator(0, i)))
    assert (energy.log_std.abs() < abs(start) - 0.1).all()


LONG = (
    *("trainer.max_steps=60", "n_validations=4", "callbacks.checkpoints.every=7"),
    *("optimizer.lr=0.01", "final_lr=1e-4", "seed=3"),
)


@pytest.mark.parametrize(
    "method",
    [
        ("method=nce", "noise_distribution=fitted_normal"),
        ("method=vnce", "method.n_lower_steps=2", "noise_distribution=fitted_normal"),
        ("method=vnce", "method.posterior=null", "method.divergence=null"),
    ],
    ids=["nce", "vnce", "vnce-true"],
)
def test_a_resumed_run_is_bit_equal_to_an_uninterrupted_one_and_evaluated_without_a_fit(method, tmp_path, monkeypatch):
    train(tmp_path / "straight", *LONG, *method)
    crash = (
        "allow_packages=[helpers]",
        "+callbacks.crash._target_=helpers.stopping.CrashAt",
        "+callbacks.crash.iteration=38",
    )
    with pytest.raises(RuntimeError, match="crashed on purpose"):
        train(tmp_path / "crashed", *LONG, *method, *crash)
    resumed = train(tmp_path / "resumed", *LONG, *method, f"ckpt={tmp_path}/crashed/checkpoints/last.ckpt")
    assert same_state(tmp_path / "resumed", tmp_path / "straight")
    assert curves(tmp_path / "resumed") == curves(tmp_path / "straight")
    state = checkpoint(tmp_path / "resumed")["state_dict"]
    if "noise_distribution=fitted_normal" in method:
        assert state["noise_distribution.fitted"]
        assert state["noise_distribution.mean"].max() > 0.5  # the mean of the digits
        assert state["noise_distribution.std"].min() == pytest.approx(0.01)  # min_std, for the constant pixels
    assert state["model.c"] != 0
    tensors = {value.data_ptr() for value in state.values()}
    assert len(tensors) == len(state)  # no tensor has two names
    best = tmp_path / "resumed" / "checkpoints" / "best.ckpt"
    monkeypatch.setattr(FittedNormal, "fit", None)
    assert evaluate(tmp_path / "again", best) == of_checkpoint(resumed)


# --- what is refused --------------------------------------------------------------------------------------


class JointOnly(Energy):
    event_shape, h_dim, continuous = (V_DIM,), H_DIM, True

    def energy(self, v, h): ...


def binary_posterior():
    return BernoulliPosterior(v_dim=V_DIM, h_dim=H_DIM)


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: nce(JointOnly()), "JointOnly has no tractable free energy, which NCE needs: use method=vnce"),
        (lambda: vnce(JointOnly()), r"JointOnly has no p\(h\|v\) to draw from: give a posterior and a divergence"),
        (lambda: vnce(GRBM(v_dim=2, h_dim=3), divergence=KL()), "give both, or null for both"),
        (lambda: vnce(GRBM(v_dim=2, h_dim=3), binary_posterior(), divergence=None), "give both, or null for both"),
        (lambda: vnce(GaussianLatentModel(v_dim=2, h_dim=3), binary_posterior()), "choose a posterior that fits"),
        (lambda: vnce(GRBM(v_dim=2, h_dim=3), binary_posterior(), divergence=Fisher()), "needs continuous latents"),
        (
            lambda: vnce(GRBM(v_dim=2, h_dim=3), LinearGaussianPosterior(v_dim=2, h_dim=3)),
            "choose a posterior that fits",
        ),
        (lambda: vnce(GRBM(v_dim=2, h_dim=3), binary_posterior(), n_lower_steps=-1), r"\(K\) must be >= 0, not -1"),
    ],
)
def test_refusals(build, sentence):
    with pytest.raises(ConfigError, match=sentence) as refusal:
        build()
    assert "\n" not in str(refusal.value)
