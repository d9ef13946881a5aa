"""Tests of the method BiDVL: what each step trains, iterations of the authors' code, the unrolled gradient, and resumed
runs."""

import copy

import pytest
import torch
from torch import nn

import eblvm_lit as eb
from cases import randomise
from eblvm_lit.core.functional import plain_autograd
from eblvm_lit.energies.spectral import JointSpectralEnergy
from eblvm_lit.methods.bidvl.joint_losses import SymmetricJoint
from eblvm_lit.methods.bidvl.losses import OffsetLatentTerm
from eblvm_lit.methods.bidvl.ratios import ConstantRatio
from eblvm_lit.runs import run as training
from helpers import bidvl_networks, iterating
from helpers.bidvl_images import SHAPE, bidvl, changed, flat, minibatch
from helpers.image_files import write_cifar10
from helpers.iterating import run, start
from helpers.shell import configure
from tolerances import operations, reordered


@pytest.mark.parametrize("name", ["complete", "joint"])
def test_each_step_moves_its_own_parameters_and_nothing_else(name, float64):
    """Check that a step changes only what it trains.

    All other parameters, running statistics and spectral norms must stay bit-equal.
    """
    method = bidvl(name)
    v, noise = minibatch(method)
    method.run_iteration(start(method), v, noise)  # After this iteration, the optimizers have moments.
    prefixes = {"upper": "theta.", "upper_encoder": "omega.encoder.", "lower": "omega."}
    for group in method.groups:
        begin = start(method)
        copied = {key: value.clone() for key, value in flat(begin).items()}
        with plain_autograd():
            end, _ = run(method, begin, v, noise, only=[group])
        moved = changed(begin, end)
        own = {key for key in copied if key.startswith(prefixes[group])}
        assert moved <= own
        assert {key for key in own if "bias" not in key and "weight" in key and "norm" not in key} & moved
        assert any(key in method.persistent_buffers() for key in moved)
        assert all(torch.equal(copied[key], value) for key, value in flat(start(method)).items())


@pytest.mark.parametrize("name", ["offset-exp", "complete", "without", "joint", "canonical"])
def test_both_kinds_of_differentiation_agree(name, float64):
    method = bidvl(name, n_lower_steps=2)
    v, noise = minibatch(method)
    with plain_autograd():
        plain, record = run(method, start(method), v, noise)
    other, other_record = run(method, start(method), v, noise)
    torch.testing.assert_close(flat(plain), flat(other))
    torch.testing.assert_close(record, other_record)


def test_order_steps_and_shared_latents():
    names = list(bidvl("offset", upper_first=False).groups)
    assert names == ["lower", "upper"]
    method = bidvl("offset", n_lower_steps=3)
    _, noise = minibatch(method)
    assert len(noise["lower"]) == 3
    assert torch.equal(noise["upper"]["h_hat"], noise["lower"][0]["h_hat"])
    assert not torch.equal(noise["lower"][0]["h_hat"], noise["lower"][1]["h_hat"])
    assert not torch.equal(noise["lower"][0]["h_hat"], noise["lower"][0]["eps"])
    _, noise = minibatch(bidvl("offset", share_latents=False))
    assert not torch.equal(noise["upper"]["h_hat"], noise["lower"][0]["h_hat"])


def authors_iteration(energy, encoder, generator, upper, lower, v, noise):
    """Make one iteration of the complete loss as in the authors' code, which sets gradients to zero and not to None."""

    def descend(optimizer, loss):
        optimizer.zero_grad(set_to_none=False)
        loss.mean().backward()
        optimizer.step()

    def divergence(mean, log_std):
        return 0.5 * (mean**2 + (2 * log_std).exp() - 2 * log_std - 1).sum(1)

    n_latents = encoder.h_dim
    v_hat = generator(noise["upper"]["h_hat"]).detach()
    descend(upper, energy.free_energy(v) - energy.free_energy(v_hat))
    descend(lower, divergence(*encoder.moments(v_hat)) / n_latents)
    for drawn in noise["lower"]:
        v_hat = generator(drawn["h_hat"])
        (mean, log_std) = encoder.moments(v)
        rebuilt = generator(mean + log_std.exp() * drawn["eps"])
        both = bidvl_networks.R * ((rebuilt - v).square().sum(1) + divergence(mean, log_std))
        mean_hat, log_std_hat = encoder.moments(v_hat)
        gap = mean_hat + log_std_hat.exp() * drawn["eps_hat"] - drawn["h_hat"]
        descend(lower, both + energy.free_energy(v_hat) + gap.square().sum(1) / n_latents)


def test_iterations_with_a_shared_optimizer_are_those_of_the_authors_code(float64):
    """Compare with the authors' code (Kan et al. 2022), in which one Adam optimizer trains the encoder and the
    generator.

    The generator has no gradient in the first step of the encoder, which therefore skips it. In later steps of the
    encoder its gradient is zero, and Adam still moves it.
    """
    rates = {
        "upper": {"lr": 0.02, "betas": (0.0, 0.9)},
        "lower": {"lr": 0.01, "betas": (0.5, 0.9), "weight_decay": 0.1},
    }
    parts = [eb.MLPEnergy(v_dim=bidvl_networks.V_DIM, widths=[5]), bidvl_networks.encoder(), bidvl_networks.generator()]
    method = eb.BiDVL(
        **dict(zip(("energy", "posterior", "generator"), copy.deepcopy(parts), strict=True)),
        loss=bidvl_networks.LOSSES["complete"],
        optimizer=eb.Adam(**rates["upper"]),
        lower_optimizer=eb.Adam(**rates["lower"]),
        n_lower_steps=2,
    )
    upper = torch.optim.Adam(parts[0].parameters(), **rates["upper"])
    lower = torch.optim.Adam([p for part in parts[1:] for p in part.parameters()], **rates["lower"])
    state = start(method)
    for i in range(3):
        v = torch.randn(6, bidvl_networks.V_DIM)
        noise = method.draw_noise(v, torch.Generator().manual_seed(i))
        with plain_autograd():
            method.run_iteration(state, v, noise)
        authors_iteration(*parts, upper, lower, v, noise)
    bound = reordered(operations(method, v, 3))
    for mine, theirs in zip((method.energy, method.posterior, method.generator), parts, strict=True):
        torch.testing.assert_close(mine.state_dict(), theirs.state_dict(), rtol=bound, atol=bound)


def test_validation_loss_is_the_reconstructions_squared_error(float64):
    method = bidvl("offset").eval()
    v = torch.randn(4, *SHAPE)
    exact = (method.generator(method.posterior.moments(v)[0]) - v).square().sum((1, 2, 3))
    torch.testing.assert_close(method.validation_loss(v, torch.Generator()), exact)


def unrolling(n, joint=False, **options):
    torch.manual_seed(6)
    network = eb.MLP(sizes=[2, 3])
    energy = JointSpectralEnergy(network=network, h_dim=2, h_widths=[2, 2]) if joint else None
    parts = {
        "energy": (energy or randomise(eb.SpectralEnergy(network=network), 0.4)).eval(),
        "posterior": randomise(eb.LinearGaussianPosterior(v_dim=2, h_dim=2)),
        "generator": randomise(nn.Linear(2, 2)),
    }
    if joint:
        for p in energy.parameters():
            torch.nn.init.normal_(p, std=0.6)
    loss = (SymmetricJoint if joint else OffsetLatentTerm)(ratio=ConstantRatio(scale=0.3))
    return eb.BiDVL(**parts, loss=loss, optimizer=eb.SGD(lr=0.02 if joint else 0.3), n_unroll=n, **options)


@pytest.mark.parametrize("joint", [False, True], ids=["marginal", "joint"])
def test_the_unrolled_gradient_is_the_slope_of_the_upper_loss_after_the_lower_steps(joint, float64):
    n = 2
    method = unrolling(n, joint)
    v = torch.randn(4, 2)
    noise = method.draw_noise(v, torch.Generator().manual_seed(1))
    assert len(noise["unrolled"]) == n

    def upper_step(method, state):
        (found,) = iterating.found(method, state, v, noise)["upper"]
        return found

    ahead = unrolling(0, joint)

    def objective():
        """Return the upper loss after n steps of the lower level, made one by one."""
        ahead.load_state_dict(method.state_dict())
        state = start(ahead)
        with plain_autograd():
            # both levels get the same noise, because they share samples
            for draw in noise["unrolled"]:
                state, _ = iterating.run(ahead, state, v, {"upper": draw, "lower": [draw]}, only=["lower"])
            return upper_step(ahead, state).loss

    with plain_autograd():
        found = upper_step(method, start(method))
    torch.testing.assert_close(found.loss, objective())
    direct = unrolling(0, joint)
    with plain_autograd():
        plain = upper_step(direct, start(direct))
    for name, p in method.energy.named_parameters():
        slope = torch.zeros_like(p)
        step = 1e-5
        for i in range(p.numel()):
            ends = []
            for sign in (1, -1):
                p.data.view(-1)[i] += sign * step
                ends.append(objective())
                p.data.view(-1)[i] -= sign * step
            slope.view(-1)[i] = (ends[0] - ends[1]) / (2 * step)
        torch.testing.assert_close(found.grads[name], slope, rtol=1e-5, atol=1e-8)
    assert any(not torch.allclose(found.grads[name], g, rtol=1e-3) for name, g in plain.grads.items())


def test_a_run_ends_with_what_it_logs_and_goes_on_where_it_was_stopped(tmp_path, monkeypatch):
    """Check that a resumed run continues the batch statistics, the spectral norms, and the optimizer of the encoder's
    step."""
    write_cifar10(tmp_path)
    monkeypatch.setenv("EBLVM_DATA", str(tmp_path))
    narrow = [f"{part}.width=2" for part in ("model.network", "posterior.network", "generator")]
    small = ["data.val_size=2", "data.batch_size=3", "trainer.accelerator=cpu", "callbacks.figures=null", "logger=none"]
    overrides = ["method=bidvl", "data=cifar10", "loss=full_latent", "method.encoder_optimizer=own", *narrow, *small]
    overrides += ["callbacks.progress=null", "show_config=false", "trainer.max_steps=4", "method.compile=false"]

    def train(name, *others):
        training.train(configure(*overrides, f"run_dir={tmp_path / name}", f"outputs_dir={tmp_path}", *others))
        return torch.load(tmp_path / name / "checkpoints" / "last.ckpt", weights_only=True)

    whole = train("whole", "n_validations=1")
    crash = ["+callbacks.crash._target_=helpers.stopping.CrashAt", "+callbacks.crash.iteration=3"]
    with pytest.raises(RuntimeError, match="on purpose"):
        train("crashed", "n_validations=1", "callbacks.checkpoints.every=2", "allow_packages=[helpers]", *crash)
    resumed = train("resumed", "n_validations=1", f"ckpt={tmp_path / 'crashed' / 'checkpoints' / 'last.ckpt'}")
    for key, value in whole["state_dict"].items():
        assert torch.equal(value, resumed["state_dict"][key]), key
    state = {"energy.head.0.parametrizations.weight.0._u", "omega.encoder.network.layers.1.running_mean"}
    assert state <= {*whole["state_dict"]}
    assert len(whole["optimizer_states"]) == 3
