"""Tests of the common parts of methods with a generator: shared passes, batch statistics, and refused settings."""

import copy

import pytest
import torch

from eblvm_lit.core.functional import plain_autograd
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.draws.generator import GeneratedImages
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.bidvl import base
from eblvm_lit.runs.instantiate import instantiate
from helpers import bidvl_networks, iterating
from helpers.bidvl_images import bidvl, changed, minibatch
from helpers.iterating import start


def passes(method, state, v, noise, monkeypatch):
    """Return the state and the noise of each pass of the generator in one iteration from a given state."""
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
    # The noise does not change, so that the lower level computes the same samples once more.
    method.share_latents = False
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


def test_running_statistics_are_those_of_torchs_own_passes(float64):
    """Compare the running statistics with those of torch's own training passes.

    In the lower level, the encoder also sees v_hat. The generator's statistics come only from its pass at the encoder's
    latents, because statistics at prior latents are kept separately.
    """
    method = bidvl("offset")
    v, noise = minibatch(method)
    draw = noise["lower"][0]
    encoder = copy.deepcopy(method.posterior)
    generator = copy.deepcopy(method.generator)
    v_hat = copy.deepcopy(generator)(draw["h_hat"])
    generator(encoder.rsample(v, draw["eps"]))
    encoder.distribution_params(v_hat)
    with plain_autograd():
        buffers = iterating.found(method, start(method), v, noise)["lower"][0].buffers
    wanted = {f"omega.encoder.{key}": b for key, b in encoder.named_buffers()}
    wanted |= {f"omega.generator.{key}": b for key, b in generator.named_buffers()}
    torch.testing.assert_close(buffers, wanted)


def built(name, **options):
    return instantiate({"_target_": f"eblvm_lit.methods.bidvl.{name}", **options}, "method")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: built("method.BiDVL", n_lower_steps=0), "n_lower_steps .BiDVL. must be greater than 0, not 0"),
        (lambda: bidvl(loss=bidvl_networks.LOSSES["joint"]), "joint energy"),
        (lambda: built("losses.Adversarial", critic_loss="wasserstein"), "'hinge'.*, not 'wasserstein'"),
    ],
)
def test_parts_that_do_not_fit_are_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


def statistics(module, prefix=""):
    """Return the running means and variances of a module, by name."""
    named = module.named_buffers()
    return {name: x.clone() for name, x in named if name.startswith(prefix) and name.endswith(("_mean", "_var"))}


def of_batches(method, batches):
    """Compute the generator's batch statistics for each batch of latents, and average them over the batches."""
    found = []
    for h in batches:
        alone = copy.deepcopy(method.generator).train()
        for part in alone.modules():
            if isinstance(part, base.BATCH_NORMS):
                part.momentum = 1.0
        with torch.no_grad():
            alone(h)
        found.append(statistics(alone))
    return {name: torch.stack([own[name] for own in found]).mean(0) for name in found[0]}


def test_samples_have_the_statistics_of_latents_of_the_prior(float64):
    method = bidvl("offset")
    random = keyed_generator(method.seed, "prior statistics")
    h = torch.randn(20, 100, method.h_dim, generator=random, dtype=torch.float32).double()
    expected = of_batches(method, h)
    found = {name: value for name, value in method.prior_statistics().items() if name in expected}
    torch.testing.assert_close(found, expected)
    assert not any(torch.allclose(found[name], value) for name, value in statistics(method.generator).items())
    one, *_ = GeneratedImages(batch_size=1).passes(method, 3, seed=0)
    many, *_ = GeneratedImages(batch_size=3).passes(method, 3, seed=0)
    torch.testing.assert_close(one, many[:1])


def test_statistics_of_samples_follow_the_parameters_and_come_with_those_that_are_loaded(monkeypatch):
    method = bidvl("offset")
    before = method.prior_statistics()
    stored = {}
    monkeypatch.setattr(type(method), "iterations_done", 0)
    method.on_save_checkpoint(stored)
    torch.testing.assert_close(stored["prior_statistics"], before, rtol=0, atol=0)
    with torch.no_grad():
        next(method.generator.parameters()).mul_(2)
    after = method.prior_statistics()
    assert not torch.equal(after["layers.1.running_var"], before["layers.1.running_var"])
    monkeypatch.setattr(base, "update_bn", lambda *_: pytest.fail("they are computed again"))
    method.load_prior_statistics(before)
    torch.testing.assert_close(method.prior_statistics(), before, rtol=0, atol=0)
