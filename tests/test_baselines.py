"""The baselines of BiDVL, what it shares with them, and what its iteration costs and tells."""

import copy
import math
from collections import Counter

import pytest
import torch
from eblvm_lit.methods.levels import run_levels
from torch import nn
from torch.distributions import MultivariateNormal

import doubly
from cases import hermite, randomise
from eblvm_lit.bidvl.losses import Adversarial, OffsetLatentTerm
from eblvm_lit.bidvl.method import BiDVL
from eblvm_lit.bidvl.ratios import ConstantRatio
from eblvm_lit.bidvl.sngan import SNGAN
from eblvm_lit.bidvl.terms import non_saturating
from eblvm_lit.bidvl.vae import VAE
from eblvm_lit.callbacks.nonfinite import NonFiniteError, StopOnNonFinite
from eblvm_lit.core.autograd import grad, plain_autograd, vjp
from eblvm_lit.core.functional import params_of
from eblvm_lit.data.digits import Digits
from eblvm_lit.data.toy import Checkerboard
from eblvm_lit.energies.spectral import SpectralEnergy
from eblvm_lit.errors import ConfigError
from eblvm_lit.evaluation.out_of_distribution import Constant, DataSet, OutOfDistribution, UniformNoise
from eblvm_lit.evaluation.stability import Stability, spectral_norms
from eblvm_lit.networks.batch_norm_encoder import BatchNormEncoder
from eblvm_lit.networks.conv_generator import ConvGenerator
from eblvm_lit.networks.mlp import MLP
from eblvm_lit.networks.spectral_conv import SpectralConv
from eblvm_lit.optimizers.adam import Adam
from eblvm_lit.optimizers.sgd import SGD
from eblvm_lit.posteriors.encoder import EncoderPosterior
from eblvm_lit.posteriors.gaussian import LinearGaussianPosterior
from eblvm_lit.runtime import run
from eblvm_lit.runtime.build import build
from eblvm_lit.runtime.validate import check_config
from image_files import write_cifar10
from shell import configure
from test_bidvl import changed, flat, start

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
    return BiDVL(**{**parts, "loss": doubly.LOSSES[loss], "optimizer": SGD(lr=0.01), **options})


def minibatch(method, n=6):
    v, random = torch.randn(n, *SHAPE).tanh(), torch.Generator().manual_seed(0)
    return v, method.draw_noise(v, random)


# ------------------------------------------------------------------ the autoencoder


def test_the_autoencoders_loss_is_the_evidence_where_the_encoder_is_the_posterior(float64):
    """-log N(v; a, AA' + I/2) of the model N(h; 0, I) N(v; A h + a, I/2), h integrated out exactly."""
    d, n_h = 3, 2
    decoder = randomise(nn.Linear(n_h, d))
    A, a = decoder.weight.detach(), decoder.bias.detach()
    # a posterior whose covariance is diagonal: that of columns of A that are orthogonal
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

    players = Players(None, Posterior(v_dim=d, h_dim=n_h), None, decoder)
    eps, w = hermite(4, n_h)
    total = 0.0
    for e, weight in zip(eps, w, strict=True):
        terms = method.terms(players, v, {"eps": e.expand(len(v), -1)})
        total = total + weight * (terms["reconstruction"] + terms["prior"])
    exact = -MultivariateNormal(a, A @ A.T + 0.5 * torch.eye(d)).log_prob(v)
    torch.testing.assert_close(total + 0.5 * d * math.log(math.pi), exact)


def test_the_autoencoder_is_term_a_of_bidvl_with_a_ratio_of_one(float64):
    method, v, noise = vae(), torch.randn(5, *SHAPE), {"eps": torch.randn(5, H_DIM)}
    players = Players(None, method.posterior, None, method.generator)
    terms = OffsetLatentTerm(ratio=ConstantRatio(scale=1.0)).reconstruction(players, v, noise)
    torch.testing.assert_close(method.terms(players, v, noise), terms)


def test_a_step_of_the_autoencoder_descends_its_loss_and_moves_both_networks(float64):
    method = vae(optimizer=SGD(lr=1e-4))
    v, noise = minibatch(method)
    before = copy.deepcopy(method)
    record = method.advance(start(method), v, noise)
    torch.testing.assert_close(record["lower_loss"], record["lower_reconstruction"] + record["lower_prior"])
    with plain_autograd():
        after = method.levels()[0].gradient(start(method), v, noise["lower"], 0).loss
    assert after < record["lower_loss"]
    moved = changed(start(before), start(method))
    assert {name.split(".")[1] for name in moved} == {"encoder", "generator"}
    assert method.energy is None
    assert method.event_shape == SHAPE


# ------------------------------------------------------------------ the adversarial network


@pytest.mark.parametrize("gap", ["hinge", "softplus", "difference"])
def test_each_level_of_the_adversarial_network_moves_its_own_player_the_right_way(gap, float64):
    method = sngan(loss=Adversarial(critic_loss=gap), n_upper_steps=1)
    v, noise = minibatch(method)
    upper, lower = method.levels()
    noise["upper"] = [noise["lower"]]

    def gap(situation):
        return upper.gradient(situation, v, noise["upper"], 0).diagnostics["energy_gap"]

    begin = start(method)
    with plain_autograd():
        middle, _ = run_levels([upper], begin, v, noise)
        end, record = run_levels([lower], middle, v, noise)
        assert gap(middle) < gap(begin)  # E of data falls below E of samples
        assert lower.gradient(end, v, noise["lower"], 0).loss < record["lower_loss"]  # and E of samples falls
    assert {name.split(".")[0] for name in changed(begin, middle)} == {"theta"}
    assert {name.split(".")[0] for name in changed(middle, end)} == {"omega"}


def test_the_critic_has_so_many_steps_each_with_samples_of_its_own():
    method = sngan(n_upper_steps=3)
    _, noise = minibatch(method)
    assert [level.n_steps for level in method.levels()] == [3, 1]
    assert len({tuple(draw["h_hat"].flatten().tolist()) for draw in [*noise["upper"], noise["lower"]]}) == 4


def test_the_logistic_gap_is_the_cross_entropy_of_a_classifier_by_the_energy(float64):
    real, fake = torch.randn(5), torch.randn(5)
    is_data = [torch.sigmoid(-e) for e in (real, fake)]
    torch.testing.assert_close(non_saturating(real, fake), -is_data[0].log() - (1 - is_data[1]).log())


# ------------------------------------------------------------------ one pass for all levels


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "functional"])
def test_a_pullback_is_the_gradient(plain, float64):
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


@pytest.mark.parametrize("name", ["offset", "complete"])
def test_gradients_are_the_same_with_and_without_the_upper_levels_samples(name, float64):
    method = bidvl(name)
    v, noise = minibatch(method)
    situation = start(method)
    with plain_autograd():
        upper, lower = method.levels()[0], method.levels()[-1]
        shared = upper.gradient(situation, v, noise["upper"], 0).reusable
        again = lower.gradient(situation._replace(reusable=shared), v, noise["lower"], 0)
        alone = lower.gradient(situation, v, noise["lower"], 0)
    assert set(shared) == {"omega.generator."}
    torch.testing.assert_close(again.grads, alone.grads)
    torch.testing.assert_close(again.memory, alone.memory)


def test_samples_are_gone_once_the_generator_has_moved():
    method = bidvl(n_lower_steps=2)
    v, noise = minibatch(method)
    upper, lower = method.levels()
    with plain_autograd():
        middle, _ = run_levels([upper], start(method), v, noise)
        end, _ = run_levels([lower], middle, v, noise)
    assert set(middle.reusable) == {"omega.generator."}
    assert end.reusable == {}


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
        method.advance(start(method), v, noise)
    assert counted == PASSES[name]


# ------------------------------------------------------------------ looking ahead


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
def test_the_unrolled_gradient_is_the_slope_of_what_lower_steps_lead_to(n, float64):
    method, v = unrolling(n), torch.randn(4, 2)
    noise = method.draw_noise(v, torch.Generator().manual_seed(1))
    assert len(noise["upper"]["unrolled"]) == n

    def objective():
        """The energy gap after n steps of the lower level, taken one by one."""
        ahead = unrolling(0)
        ahead.load_state_dict(method.state_dict())
        lower, situation = ahead.levels()[1], start(ahead)
        with plain_autograd():
            for draw in noise["upper"]["unrolled"]:
                situation, _ = run_levels([lower], situation, v, {"lower": [draw]})
            return ahead.levels()[0].gradient(situation, v, noise["upper"], 0).loss

    with plain_autograd():
        found = method.levels()[0].gradient(start(method), v, noise["upper"], 0)
    torch.testing.assert_close(found.loss, objective())
    direct = unrolling(0)
    with plain_autograd():
        plain = direct.levels()[0].gradient(start(direct), v, noise["upper"], 0)
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


def test_looking_ahead_moves_the_energy_alone():
    method, v = bidvl(n_unroll=1), torch.randn(4, *SHAPE)
    noise = method.draw_noise(v, torch.Generator().manual_seed(1))
    begin = start(method)
    with plain_autograd():
        end, _ = run_levels(method.levels()[:1], begin, v, noise)
    assert {name.split(".")[0] for name in changed(begin, end)} == {"theta"}
    assert method.inner_steps() == 3
    assert method.memory_hints()[0] == "lower n_unroll (N=1)"
    assert bidvl().memory_hints() == ["lower data.batch_size"]


# ------------------------------------------------------------------ what tells that something goes wrong


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
    lower = method.loss.lower(Players(method.energy, method.posterior, method.posterior, method.generator), v, noise)
    leaves = [*method.omega.parameters()]
    for name, term in lower.items():
        grads = torch.autograd.grad(term.mean(), leaves, retain_graph=True, allow_unused=True)
        exact = math.sqrt(sum(float(g.square().sum()) for g in grads if g is not None))
        assert found[f"lower_{name}_grad_norm"] == pytest.approx(exact, rel=1e-5)


def test_spectral_norms_are_singular_values_before_and_after(float64):
    network = energy().train()
    found = spectral_norms(network)
    raw = [p.flatten(1) for name, p in network.named_parameters() if name.endswith("original")]
    assert found["weight_norm"] == pytest.approx(max(torch.linalg.svdvals(w)[0].item() for w in raw), rel=1e-5)
    assert found["spectral_norm"] >= 1 - 1e-6


def test_the_stop_names_the_term_that_is_not_finite():
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


def test_the_chains_of_models_without_a_generator_are_refused(tmp_path):
    images = ["method=bidvl", "data=cifar10", f"run_dir={tmp_path}"]
    check_config(configure(*images))
    with pytest.raises(ConfigError, match=r"figures.samples.annealed would draw images by annealed Langevin dynamics"):
        check_config(configure(*images, "figures@callbacks.figures.figures=annealed"))
    with pytest.raises(ConfigError, match=r"fid.images.sampler would draw images"):
        check_config(configure(*images, "evaluation@callbacks.evaluation.metrics=fid"))
    with pytest.raises(ConfigError, match="This method has no loss"):
        check_config(configure("method=vae", *images[1:], "loss=offset_latent"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data=mnist", "sizes.v_shape=[3,32,32]"], r"v of shape \(3, 32, 32\), the data have \(1, 32, 32\)"),
        (["data=cifar10", "generator.v_shape=[1,32,32]"], "give all players the same v_shape"),
        (["data=cifar10", "sizes.v_shape=[3,28,28]"], "has no network"),
        (["data=cifar10", "ratio.scale=1.5"], r"r' must be in \[0, 1\], not 1.5"),
        (["data=cifar10", "method.n_unroll=-1"], "must be >= 0, not -1"),
    ],
)
def test_networks_that_do_not_fit_the_images_are_refused(overrides, message, tmp_path):
    narrow = [f"{part}.width=2" for part in ("model.network", "posterior.network", "generator")]
    with pytest.raises(ConfigError, match=message):
        build(configure("method=bidvl", *narrow, *overrides, f"run_dir={tmp_path}"))


def test_a_short_last_batch_of_one_is_refused(tmp_path, monkeypatch):
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
        (lambda: Adversarial(critic_loss="wasserstein"), "difference, hinge, softplus"),
        (lambda: Stability(n=1), "n >= 2"),
    ],
)
def test_bad_input_of_the_baselines_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_every_gradient_has_a_parameter():
    for method in (vae(), sngan(), bidvl()):
        v, noise = minibatch(method)
        with plain_autograd():
            for level in method.levels():
                found = level.gradient(start(method), v, noise[level.name], 0)
                names = {name for name in params_of(method.players()[level.player]) if level.owns(name)}
                assert set(found.grads) == names
        assert set(flat(start(method)))
