"""The baselines VAE and SN-GAN, the cost of an iteration of BiDVL, its unrolled gradient, and its diagnostics."""

import copy
import math
from collections import Counter

import pytest
import torch
from hydra.errors import HydraException
from torch import nn
from torch.distributions import MultivariateNormal

from cases import hermite, randomise
from eblvm_lit.cli import run
from eblvm_lit.cli.build import build
from eblvm_lit.core.functional import grad, params_of, plain_autograd, vjp
from eblvm_lit.data.digits import Digits
from eblvm_lit.data.toy import Checkerboard
from eblvm_lit.energies.spectral import SpectralEnergy
from eblvm_lit.errors import ConfigError
from eblvm_lit.evaluation.out_of_distribution import Constant, DataSet, OutOfDistribution, UniformNoise
from eblvm_lit.evaluation.stability import Stability, spectral_norms
from eblvm_lit.methods.bidvl.base import Networks
from eblvm_lit.methods.bidvl.losses import Adversarial, OffsetLatentTerm, non_saturating
from eblvm_lit.methods.bidvl.method import BiDVL
from eblvm_lit.methods.bidvl.ratios import ConstantRatio
from eblvm_lit.methods.bidvl.sngan import SNGAN
from eblvm_lit.methods.bidvl.vae import VAE
from eblvm_lit.networks.bidvl_conv import BatchNormEncoder, ConvGenerator, SpectralConv
from eblvm_lit.networks.mlp import MLP
from eblvm_lit.optimizers.adam import Adam
from eblvm_lit.optimizers.sgd import SGD
from eblvm_lit.posteriors.gaussian import EncoderPosterior, LinearGaussianPosterior
from eblvm_lit.training.callbacks.nonfinite import NonFiniteError, StopOnNonFinite
from helpers import bidvl_networks, iterating
from helpers.bidvl_states import changed, flat
from helpers.image_files import write_cifar10
from helpers.iterating import start
from helpers.shell import configure

SHAPE, H_DIM = (1, 8, 8), 3


def energy(**options):
    return SpectralEnergy(network=SpectralConv(v_shape=SHAPE, width=2), **options)


def encoder():
    return EncoderPosterior(network=BatchNormEncoder(v_shape=SHAPE, width=2), h_dim=H_DIM)


def generator():
    return ConvGenerator(v_shape=SHAPE, h_dim=H_DIM, width=2)


def vae(**options):
    return VAE(**{"posterior": encoder(), "generator": generator(), "optimizer": Adam(lr=1e-2), **options})


def sngan(**options):
    parts = {"energy": energy(output="identity"), "generator": generator(), "loss": Adversarial()}
    return SNGAN(**{**parts, "optimizer": SGD(lr=0.01), **options})


def bidvl(loss="offset", **options):
    parts = {"energy": energy(), "posterior": encoder(), "generator": generator()}
    own = {"loss": bidvl_networks.LOSSES[loss], "optimizer": SGD(lr=0.01), "encoder_optimizer": "own"}
    return BiDVL(**{**parts, **own, **options})


def minibatch(method, n=6):
    v, random = torch.randn(n, *SHAPE).tanh(), torch.Generator().manual_seed(0)
    return v, method.draw_noise(v, random)


# ------------------------------------------------------------------ the autoencoder


def test_the_autoencoders_loss_is_minus_the_log_evidence_if_the_encoder_is_the_true_posterior(float64):
    """-log N(v; a, AA' + I/2) of the model N(h; 0, I) N(v; A h + a, I/2), h integrated out exactly."""
    d, n_h = 3, 2
    decoder = randomise(nn.Linear(n_h, d))
    A, a = decoder.weight.detach(), decoder.bias.detach()
    # the columns of A are orthogonal, so that the covariance of the posterior is diagonal
    A = torch.linalg.qr(A)[0] * torch.tensor([1.5, 0.4])
    decoder.weight.data.copy_(A)
    precision = torch.eye(n_h) + 2 * A.T @ A
    q = LinearGaussianPosterior(v_dim=d, h_dim=n_h)
    method = VAE(posterior=q, generator=decoder, optimizer=SGD(lr=0.1))
    v = torch.randn(4, d)
    mean = 2 * (v - a) @ A @ torch.linalg.inv(precision)

    class Posterior(LinearGaussianPosterior):
        def moments(self, x):
            return mean, (-0.5 * precision.diag().log()).expand_as(mean)

    networks = Networks(None, Posterior(v_dim=d, h_dim=n_h), None, decoder)
    eps, w = hermite(4, n_h)
    total = 0.0
    for e, weight in zip(eps, w, strict=True):
        terms = method.bound(networks, v, {"eps": e.expand(len(v), -1)})
        total = total + weight * (terms["reconstruction"] + terms["prior"])
    exact = -MultivariateNormal(a, A @ A.T + 0.5 * torch.eye(d)).log_prob(v)
    torch.testing.assert_close(total + 0.5 * d * math.log(math.pi), exact)


def test_the_autoencoders_loss_is_term_a_of_bidvl_with_a_ratio_of_one(float64):
    method, v, noise = vae(), torch.randn(5, *SHAPE), {"eps": torch.randn(5, H_DIM)}
    networks = Networks(None, method.posterior, None, method.generator)
    terms = OffsetLatentTerm(ratio=ConstantRatio(scale=1.0)).reconstruction(networks, v, noise)
    torch.testing.assert_close(method.bound(networks, v, noise), terms)


def test_a_step_of_the_autoencoder_descends_its_loss_and_moves_both_networks(float64):
    method = vae(optimizer=SGD(lr=1e-4))
    v, noise = minibatch(method)
    before = copy.deepcopy(method)
    record = method.run_iteration(start(method), v, noise)
    torch.testing.assert_close(record["model_loss"], record["model_reconstruction"] + record["model_prior"])
    with plain_autograd():
        (found,) = iterating.found(method, start(method), v, noise)["model"]
    assert found.loss < record["model_loss"]
    moved = changed(start(before), start(method))
    assert {name.split(".")[1] for name in moved} == {"encoder", "generator"}
    assert method.energy is None
    assert method.event_shape == SHAPE


# ------------------------------------------------------------------ the adversarial network


@pytest.mark.parametrize("critic_loss", ["hinge", "softplus", "difference"])
def test_each_step_of_the_adversarial_network_moves_one_network_down_its_loss(critic_loss, float64):
    method = sngan(loss=Adversarial(critic_loss=critic_loss), n_upper_steps=1)
    v, noise = minibatch(method)
    noise["upper"] = [noise["lower"]]

    def step_of(name, state):
        (found,) = iterating.found(method, state, v, noise)[name]
        return found

    def gap(state):
        return step_of("upper", state).diagnostics["energy_gap"]

    begin = start(method)
    with plain_autograd():
        middle, _ = iterating.run(method, begin, v, noise, only=["upper"])
        end, record = iterating.run(method, middle, v, noise, only=["lower"])
        assert gap(middle) < gap(begin)  # the critic's step lowers E(v) - E(v_hat)
        assert step_of("lower", end).loss < record["lower_loss"]  # the generator's step lowers E(v_hat)
    assert {name.split(".")[0] for name in changed(begin, middle)} == {"theta"}
    assert {name.split(".")[0] for name in changed(middle, end)} == {"omega"}


def test_the_critic_has_n_upper_steps_each_with_fresh_samples():
    method = sngan(n_upper_steps=3)
    v, noise = minibatch(method)
    steps = iterating.found(method, start(method), v, noise)
    assert {name: len(found) for name, found in steps.items()} == {"upper": 3, "lower": 1}
    assert len({tuple(draw["h_hat"].flatten().tolist()) for draw in [*noise["upper"], noise["lower"]]}) == 4


def test_fresh_minibatches_deal_the_rows_out_to_the_steps_of_the_critic(float64):
    method, alone = sngan(n_upper_steps=3, fresh_minibatches=True), sngan(n_upper_steps=1)
    method.check_batch_size(6)
    alone.load_state_dict(method.state_dict())
    v, noise = minibatch(method)
    assert len(v) == 6
    steps = iterating.found(method, start(method), v, noise)
    for k, step in enumerate(steps["upper"]):
        own = {name: x[k::3] for name, x in noise["upper"][k].items()}
        lower = {name: x[::3] for name, x in noise["lower"].items()}
        expected = iterating.found(alone, start(alone), v[k::3], {"upper": [own], "lower": lower})
        torch.testing.assert_close(step.grads, expected["upper"][0].grads, rtol=0, atol=0)
        torch.testing.assert_close(steps["lower"][0].grads, expected["lower"][0].grads, rtol=0, atol=0)
    for n in (3, 7):
        with pytest.raises(ConfigError, match="cannot be dealt out evenly to 3 steps"):
            method.check_batch_size(n)


def test_the_logistic_gap_is_the_cross_entropy_of_a_classifier_by_the_energy(float64):
    real, fake = torch.randn(5), torch.randn(5)
    is_data = [torch.sigmoid(-e) for e in (real, fake)]
    torch.testing.assert_close(non_saturating(real, fake), -is_data[0].log() - (1 - is_data[1]).log())


# ------------------------------------------------------------------ passes that steps share


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "functional"])
def test_a_pullback_of_a_cotangent_is_the_gradient_of_the_product_with_it(plain, float64):
    x = {"a": torch.randn(3), "unused": torch.randn(2)}
    cotangent = torch.randn(3)

    def fn(x):
        return x["a"] ** 3, x["a"].sum()

    def both():
        value, pull, aux = vjp(fn, x)
        return value, pull(cotangent), aux

    if plain:
        with plain_autograd():
            value, found, aux = both()
    else:
        value, found, aux = both()
    assert not value.requires_grad
    assert torch.equal(aux, x["a"].sum())
    torch.testing.assert_close(found, grad(lambda x: (fn(x)[0] * cotangent).sum())(x))


def passes(method, state, v, noise, monkeypatch):
    """The state and the noise of each pass of the generator in an iteration that starts from a state."""
    made = []

    def generate(state, drawn):
        made.append((state, drawn))
        return type(method).generate(method, state, drawn)

    with monkeypatch.context() as patched, plain_autograd():
        patched.setattr(method, "generate", generate)
        iterating.run(method, state, v, noise)
    return made


@pytest.mark.parametrize("name", ["offset", "complete"])
def test_lower_gradients_are_the_same_with_shared_samples_and_with_samples_made_again(name, float64, monkeypatch):
    method = bidvl(name)
    v, noise = minibatch(method)
    state = start(method)

    def lower_step(n_passes):
        assert len(passes(method, state, v, noise, monkeypatch)) == n_passes
        with plain_autograd():
            (found,) = iterating.found(method, state, v, noise)["lower"]
        return found

    shared = lower_step(n_passes=1)
    method.share_latents = False  # the noise stays: both levels compute the same samples
    alone = lower_step(n_passes=2)
    torch.testing.assert_close(shared.grads, alone.grads)
    torch.testing.assert_close(shared.buffers, alone.buffers)


def test_samples_are_made_again_once_the_generator_has_moved(monkeypatch):
    method = bidvl(n_lower_steps=2)
    v, noise = minibatch(method)
    begin = start(method)
    (first, drawn), (second, drawn_again) = passes(method, begin, v, noise, monkeypatch)
    assert drawn is noise["upper"]
    assert drawn_again is noise["lower"][1]
    assert not changed(begin, first)
    weights = {f"omega.generator.{name}" for name, _ in method.generator.named_parameters() if name.endswith("weight")}
    assert weights <= changed(begin, second)


PASSES = {
    # energy: v and v_hat of the upper level, v_hat of the lower; encoder: v and v_hat; generator: h_hat and h
    "offset": {"energy": 3, "encoder": 2, "generator": 2},
    "complete": {"energy": 3, "encoder": 3, "generator": 2},
    "without": {"energy": 3, "encoder": 1, "generator": 2},
    "vae": {"encoder": 1, "generator": 1},
    "sngan": {"energy": 11, "generator": 6},
}


@pytest.mark.parametrize("name", PASSES)
def test_no_pass_is_computed_twice(name, monkeypatch):
    counted = Counter()
    for key, kind in {"energy": SpectralConv, "encoder": BatchNormEncoder, "generator": ConvGenerator}.items():

        def forward(self, x, key=key, own=kind.forward):
            counted[key] += 1
            return own(self, x)

        monkeypatch.setattr(kind, "forward", forward)
    method = {"vae": vae, "sngan": sngan}[name]() if name in ("vae", "sngan") else bidvl(name)
    v, noise = minibatch(method)
    with plain_autograd():
        method.run_iteration(start(method), v, noise)
    assert counted == PASSES[name]


# ------------------------------------------------------------------ the unrolled gradient


def unrolling(n, **options):
    torch.manual_seed(3)
    parts = {
        "energy": randomise(SpectralEnergy(network=MLP(sizes=[2, 5])), 0.4).eval(),
        "posterior": randomise(LinearGaussianPosterior(v_dim=2, h_dim=2)),
        "generator": randomise(nn.Linear(2, 2)),
    }
    rule = SGD(lr=0.3)
    return BiDVL(**parts, loss=OffsetLatentTerm(ratio=ConstantRatio(scale=0.3)), optimizer=rule, n_unroll=n, **options)


@pytest.mark.parametrize("n", [1, 2])
def test_the_unrolled_gradient_is_the_slope_of_the_upper_loss_after_the_lower_steps(n, float64):
    method, v = unrolling(n), torch.randn(4, 2)
    noise = method.draw_noise(v, torch.Generator().manual_seed(1))
    assert len(noise["unrolled"]) == n

    def upper_step(method, state):
        (found,) = iterating.found(method, state, v, noise)["upper"]
        return found

    def objective():
        """The upper loss after n steps of the lower level, taken one by one."""
        ahead = unrolling(0)
        ahead.load_state_dict(method.state_dict())
        state = start(ahead)
        with plain_autograd():
            for draw in noise["unrolled"]:  # one draw for both levels, which share samples
                state, _ = iterating.run(ahead, state, v, {"upper": draw, "lower": [draw]}, only=["lower"])
            return upper_step(ahead, state).loss

    with plain_autograd():
        found = upper_step(method, start(method))
    torch.testing.assert_close(found.loss, objective())
    direct = unrolling(0)
    with plain_autograd():
        plain = upper_step(direct, start(direct))
    for name, p in method.energy.named_parameters():
        slope, step = torch.zeros_like(p), 1e-5
        for i in range(p.numel()):
            ends = []
            for sign in (1, -1):
                p.data.view(-1)[i] += sign * step
                ends.append(objective())
                p.data.view(-1)[i] -= sign * step
            slope.view(-1)[i] = (ends[0] - ends[1]) / (2 * step)
        torch.testing.assert_close(found.grads[name], slope, rtol=1e-5, atol=1e-8)
    assert any(not torch.allclose(found.grads[name], g, rtol=1e-3) for name, g in plain.grads.items())


def test_an_unrolled_upper_step_moves_the_energy_alone():
    method, v = bidvl(n_unroll=1), torch.randn(4, *SHAPE)
    noise = method.draw_noise(v, torch.Generator().manual_seed(1))
    begin = start(method)
    with plain_autograd():
        end, _ = iterating.run(method, begin, v, noise, only=["upper"])
    assert {name.split(".")[0] for name in changed(begin, end)} == {"theta"}
    assert method.inner_steps() == 3
    assert method.memory_hints()[0] == "lower n_unroll (N=1)"
    assert bidvl().memory_hints() == ["lower data.batch_size"]


# ------------------------------------------------------------------ diagnostics of a failing run


def test_gradient_norms_are_those_of_each_term_and_nothing_moves(float64):
    torch.manual_seed(0)
    method, data = bidvl("complete"), Digits()
    data.setup()
    before = {name: value.clone() for name, value in method.state_dict().items()}
    v = data.as_float(data.splits.val[:6]).double().view(-1, *SHAPE)

    class Images:
        splits, as_float = data.splits, staticmethod(lambda rows: data.as_float(rows).view(-1, *SHAPE))

    method.eval()
    found = Stability(n=6).evaluate(method, Images, "val", torch.Generator().manual_seed(1))
    assert not method.training
    assert all(torch.equal(value, before[name]) for name, value in method.state_dict().items())
    terms = {"upper_critic_loss", "upper_encoder_prior"}
    terms |= {f"lower_{name}" for name in ("reconstruction", "prior", "energy", "latent")}
    assert set(found) == {*(f"{term}_grad_norm" for term in terms), "weight_norm", "spectral_norm"}
    noise = method.draw_noise(v, torch.Generator().manual_seed(1))["lower"][0]
    method.train()
    lower = method.loss.lower(Networks(method.energy, method.posterior, method.posterior, method.generator), v, noise)
    leaves = [*method.omega.parameters()]
    for name, term in lower.items():
        grads = torch.autograd.grad(term.mean(), leaves, retain_graph=True, allow_unused=True)
        exact = math.sqrt(sum(float(g.square().sum()) for g in grads if g is not None))
        assert found[f"lower_{name}_grad_norm"] == pytest.approx(exact, rel=1e-5)


def test_spectral_norms_are_the_singular_values_before_and_after_normalisation(float64):
    network = energy().train()
    found = spectral_norms(network)
    raw = [p.flatten(1) for name, p in network.named_parameters() if name.endswith("original")]
    assert found["weight_norm"] == pytest.approx(max(torch.linalg.svdvals(w)[0].item() for w in raw), rel=1e-5)
    assert found["spectral_norm"] >= 1 - 1e-6


def test_the_error_names_the_term_that_is_not_finite():
    method = bidvl()
    nan, one = torch.tensor(math.nan), torch.tensor(1.0)
    record = {"lower_loss": nan, "lower_grad_norm": nan, "lower_reconstruction": one, "lower_latent": nan}
    with pytest.raises(NonFiniteError, match="The lower level's latent is nan at iteration 7"):
        StopOnNonFinite()._check(method, 7, record)


# ------------------------------------------------------------------ outliers


def test_outliers_are_drawn_in_the_range_of_the_data():
    v = torch.rand(500, *SHAPE) * 2 - 1
    v[0, 0, 0, :2] = torch.tensor([-1.0, 1.0])
    for kind in (UniformNoise, Constant):
        w = kind().draw(v, torch.Generator().manual_seed(0))
        assert -1 <= w.min() < -0.97 < 0.97 < w.max() <= 1
        assert abs(w.mean()) < 0.1
        assert kind(low=0.0).draw(v, torch.Generator().manual_seed(0)).min() >= 0


def test_outliers_of_another_shape_are_refused_before_the_first_iteration():
    points = Checkerboard()
    with pytest.raises(ConfigError, match=r"shape \(2,\) are no images to compare with those of Digits"):
        OutOfDistribution(sets={"digits": DataSet(data=Digits())}).prepare(bidvl(), points)


# ------------------------------------------------------------------ bad input


def test_a_vae_has_no_loss_to_choose():
    with pytest.raises(HydraException, match="Could not override 'loss'"):
        configure("method=vae", "data=cifar10", "loss=offset_latent")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data=mnist", "sizes.v_shape=[3,32,32]"], r"v of shape \(3, 32, 32\), the data have \(1, 32, 32\)"),
        (["data=cifar10", "generator.v_shape=[1,32,32]"], "give all networks the same v_shape"),
        (["data=cifar10", "sizes.v_shape=[3,28,28]"], "has no network"),
        (["data=cifar10", "method.n_unroll=-1"], "must be >= 0, not -1"),
    ],
)
def test_networks_that_do_not_fit_the_images_are_refused(overrides, message, tmp_path):
    narrow = [f"{part}.width=2" for part in ("model.network", "posterior.network", "generator")]
    with pytest.raises(ConfigError, match=message):
        build(configure("method=bidvl", *narrow, *overrides, f"run_dir={tmp_path}"))


def test_a_last_batch_of_one_example_is_refused(tmp_path, monkeypatch):
    write_cifar10(tmp_path)  # 20 images to train on
    monkeypatch.setenv("EBLVM_DATA", str(tmp_path))
    narrow = [f"{part}.width=2" for part in ("posterior.network", "generator")]
    cfg = ["method=vae", "data=cifar10", *narrow, "data.val_size=2", "data.batch_size=19", "logger=none"]
    cfg += ["callbacks.figures=null", "callbacks.progress=null", "show_config=false", "trainer.accelerator=cpu"]
    with pytest.raises(ConfigError, match="leave no single example over"):
        run.train(configure(*cfg, "trainer.max_steps=2", "n_validations=1", f"run_dir={tmp_path / 'run'}"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sngan(n_upper_steps=0), "n_upper_steps must be >= 1"),
        (lambda: sngan(generator=ConvGenerator(v_shape=[3, 8, 8], h_dim=3, width=2)), "the same v_shape"),
        (lambda: vae(generator=ConvGenerator(v_shape=SHAPE, h_dim=5, width=2)), "the same h_dim"),
        (lambda: Adversarial(critic_loss="wasserstein"), "'difference', 'hinge' or 'softplus'"),
    ],
)
def test_bad_input_of_the_baselines_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_each_step_has_a_gradient_for_exactly_the_parameters_of_its_group():
    for method in (vae(), sngan(), bidvl()):
        v, noise = minibatch(method)
        with plain_autograd():
            steps = iterating.found(method, start(method), v, noise)
        for name, group in method.groups.items():
            names = set(group.of(params_of(method.networks()[group.network])))
            assert steps[name]
            assert all(set(found.grads) == names for found in steps[name])
        assert set(flat(start(method)))
