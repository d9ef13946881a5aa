"""trainer.precision=auto: what it measures, what it chooses, what it says, and that it leaves no trace."""

import copy
import logging
import re

import pytest
import torch

from eblvm_lit.cli import precision, run
from eblvm_lit.cli.build import build
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.base import Method
from eblvm_lit.training.precision import Convolution, Probe, choose_precision, decide, largest_convolution, probe
from image_files import write_cifar10
from shell import checkpoint, configure, curves, same, train

CPU = torch.device("cpu")
SMALL = ("model.network.n_blocks=1", "model.network.channels=2", "data.size=8", "posterior.network.widths=[2,2,2]")
KIND = Convolution(
    False,
    (
        *(("in_channels", 2), ("out_channels", 3), ("kernel_size", (3, 3)), ("stride", (1, 1))),
        *(("padding", (1, 1)), ("dilation", (1, 1)), ("groups", 1), ("bias", True)),
    ),
    (2, 4, 4),
    2 * 16 * 54,
)
FASTER, SLOWER = Probe(KIND, 4, 1e-3, 4e-4), Probe(KIND, 4, 1e-3, 9e-4)


@pytest.fixture(autouse=True)
def single(monkeypatch):
    torch.set_default_dtype(torch.float32)
    monkeypatch.setattr(precision, "SECONDS", 0.0)
    monkeypatch.setattr(precision, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(precision, "HOPELESS", 1e9)


@pytest.fixture
def images(tmp_path, monkeypatch):
    write_cifar10(tmp_path)
    monkeypatch.setenv("EBLVM_DATA", str(tmp_path))
    return tmp_path


def parts_of(folder, *overrides):
    """The parts of a small run on images, with their data."""
    short = ("data=cifar10", "data.val_size=2", "data.batch_size=3", "method.compile=false")
    cfg = configure(*short, *overrides, f"run_dir={folder}", f"outputs_dir={folder}")
    parts = build(cfg)
    parts.data.setup()
    return parts


def counted(monkeypatch, found):
    """Instead of measuring, says what was found; what was asked for."""
    asked = []
    monkeypatch.setattr(precision, "probe", lambda *what: asked.append(what) or found)
    return asked


@pytest.mark.parametrize(("found", "chosen"), [(FASTER, "bf16-mixed"), (SLOWER, "32-true")])
def test_the_faster_dtype_is_chosen_if_it_is_worth_it(found, chosen, images, monkeypatch):
    parts = parts_of(images, "method=mdsm", *SMALL[:3])
    asked = counted(monkeypatch, found)
    decision, reason = decide(parts, CPU)
    assert decision == chosen
    assert re.search(r"a 3x3 convolution of 2 to 3 channels, 4x4 pixels, takes 1 ms in float32 and 0.\d ms in", reason)
    convolution, rows, device = asked[0]
    assert (rows, device) == (3, CPU)
    # the widest of a ResNet with one block at 8 x 8 and one at 4 x 4, at twice the width
    sizes = dict(convolution.options)
    assert sizes["kernel_size"] == (3, 3)
    assert convolution.flops == 2 * sizes["in_channels"] * sizes["out_channels"] * 9 * convolution.size[1] ** 2


def test_several_processes_share_the_minibatch_that_is_measured(images, monkeypatch):
    asked = counted(monkeypatch, FASTER)
    decide(parts_of(images, "method=mdsm", *SMALL[:3]), CPU, n_processes=2)
    assert asked[0][1] == 1


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (("method=cd", *SMALL[:3]), "the gradient is a small difference of two means"),
        (("method=pcd", *SMALL[:3]), "the gradient is a small difference of two means"),
        (("method=nce", *SMALL[:3]), "logits are small differences"),
        (("method=snl", *SMALL[:3]), "weights are exponentials of small differences"),
        (("method=vsnl", *SMALL), "weights are exponentials of small differences"),
        (("method=particle_ml", *SMALL[:3]), "the gradient is a small difference of two means"),
        (("method=ssm", *SMALL[:3]), "second derivatives of the energy"),
        (("method=bissm", *SMALL), "second derivatives of the energy"),
        (("method=bimdsm", "hypergradient=unroll", "method.n_unroll=2", *SMALL), "differentiates the lower level"),
        (("method=dsm", "model=grbm", "data.flatten=true", "model.v_dim=3072"), "the model has no convolutions"),
        (("method=bidvl", "method.n_unroll=1"), "differentiates unrolled steps"),
    ],
)
def test_what_needs_float32_keeps_it_and_nothing_is_measured(overrides, reason, images, monkeypatch):
    asked = counted(monkeypatch, FASTER)
    chosen, said = decide(parts_of(images, *overrides), CPU)
    assert chosen == "32-true"
    assert reason in said
    assert asked == []


def test_methods_that_bfloat16_fits_are_measured(images, monkeypatch):
    asked = counted(monkeypatch, FASTER)
    for overrides in (("method=bimdsm", *SMALL), ("method=vages_mdsm", *SMALL)):
        assert decide(parts_of(images, *overrides), CPU)[0] == "bf16-mixed"
    narrow = [f"{part}.width=2" for part in ("model.network", "posterior.network", "generator")]
    assert decide(parts_of(images, "method=bidvl", *narrow), CPU)[0] == "bf16-mixed"
    assert len(asked) == 3
    assert {convolution.transposed for convolution, _, _ in asked} == {False, True}


def test_a_device_without_bfloat16_stays_in_float32(images, monkeypatch):
    def fail(*what):
        raise RuntimeError("Current device does not support bfloat16\nand more")

    monkeypatch.setattr(precision, "probe", fail)
    chosen, reason = decide(parts_of(images, "method=mdsm", *SMALL[:3]), CPU)
    assert chosen == "32-true"
    assert reason == "as cpu ran no convolution in bfloat16 (Current device does not support bfloat16)"


@pytest.mark.parametrize("transposed", [False, True])
def test_the_probe_runs_both_dtypes_and_draws_nothing(transposed):
    options = dict(KIND.options) | ({"output_padding": (0, 0)} if transposed else {})
    kind = KIND._replace(transposed=transposed, options=tuple(options.items()))
    before = torch.get_rng_state()
    found = probe(kind, 5, CPU)
    assert torch.equal(torch.get_rng_state(), before)
    assert found.rows == 5
    assert 0 < found.single < 10
    assert 0 < found.half < 10


def test_the_probe_takes_no_more_rows_than_it_has_time_for():
    assert probe(KIND._replace(flops=int(1e8)), 1000, CPU).rows == 10
    assert probe(KIND._replace(flops=int(1e12)), 1000, CPU).rows == 1


def test_the_probe_ends_at_its_first_look_where_bfloat16_is_emulated(monkeypatch):
    """Fifty times slower, the whole probe took forty seconds."""
    monkeypatch.setattr(precision, "HOPELESS", 4.0)
    shapes = []

    def slow(module, shape, seconds):
        shapes.append(shape)
        return 1e-3, 5e-2

    monkeypatch.setattr(precision, "_times", slow)
    wide = KIND._replace(size=(2, 64, 64), flops=int(2e9))
    assert probe(wide, 100, CPU) == Probe(wide, 1, 1e-3, 5e-2)
    assert shapes == [(1, 2, 6, 6)]


def test_the_sizes_of_convolutions_are_found_before_a_backward_pass(images, monkeypatch):
    parts = parts_of(images, "method=mdsm", *SMALL[:3])
    v = parts.data.as_float(parts.data.splits.train[:2].clone())
    monkeypatch.setattr(torch.autograd, "grad", lambda *what, **options: pytest.fail("it went on"))
    assert largest_convolution(parts.method, v).flops > 0


def test_looking_at_the_convolutions_leaves_the_method_and_random_states_alone(images):
    parts = parts_of(images, "method=bidvl", *(f"{part}.width=2" for part in ("model.network", "generator")))
    method, before = parts.method.train(), copy.deepcopy(parts.method.state_dict())
    state = torch.get_rng_state()
    v = parts.data.as_float(parts.data.splits.train[:2].clone())
    found = largest_convolution(method, v)
    assert found.flops == 2 * found.size[1] ** 2 * 16 * dict(found.options)["in_channels"] * dict(found.options)[
        "out_channels"
    ] // (1 if found.transposed else 4)
    assert torch.equal(torch.get_rng_state(), state)
    assert same(dict(method.state_dict()), dict(before))
    assert method.training
    assert not any(module._forward_hooks for module in method.modules())


IMAGE_RUN = ("method=mdsm", "trainer.precision=auto", "callbacks.evaluation=null", *SMALL[:3])


def run_on(folder, *overrides):
    options = ("debug=fast", "data=cifar10", "data.val_size=2", "data.batch_size=3", "callbacks.figures=null")
    run.train(configure(*options, *IMAGE_RUN, *overrides, f"run_dir={folder}", f"outputs_dir={folder.parent}"))


def chosen_in(folder):
    return checkpoint(folder)["eblvm_lit"]["config"]["trainer"]["precision"]


def test_a_run_says_what_it_chose_and_is_the_run_with_that_precision(images, monkeypatch, caplog):
    counted(monkeypatch, FASTER)
    with caplog.at_level(logging.INFO):
        run_on(images / "auto")
    said = [record.message for record in caplog.records if record.message.startswith("precision=auto")]
    assert len(said) == 1
    assert re.fullmatch(r"precision=auto: bf16-mixed, a 3x3 .* takes 1 ms in float32 and 0.4 ms in bf.*\.", said[0])
    assert "precision: bf16-mixed" in (images / "auto" / "config.yaml").read_text()
    assert chosen_in(images / "auto") == "bf16-mixed"
    run_on(images / "set", "trainer.precision=bf16-mixed")
    assert curves(images / "auto") == curves(images / "set")
    assert same(checkpoint(images / "auto")["state_dict"], checkpoint(images / "set")["state_dict"])


def test_a_resumed_run_keeps_what_the_first_one_chose(images, monkeypatch, caplog):
    counted(monkeypatch, FASTER)
    run_on(images / "first", "trainer.max_steps=4")
    asked = counted(monkeypatch, SLOWER)
    with caplog.at_level(logging.INFO):
        run_on(images / "next", "trainer.max_steps=6", f"ckpt={images / 'first'}")
    assert asked == []
    assert "precision=auto: bf16-mixed, as in the checkpoint that the run goes on from." in caplog.text
    assert chosen_in(images / "next") == "bf16-mixed"


def test_another_precision_on_resuming_is_not_silent(images, monkeypatch, caplog):
    counted(monkeypatch, FASTER)
    run_on(images / "first", "trainer.max_steps=4")
    caplog.clear()
    run_on(images / "next", "trainer.max_steps=6", "trainer.precision=32-true", f"ckpt={images / 'first'}")
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert "The checkpoint is of trainer.precision=bf16-mixed; the run goes on with 32-true." in warnings


def test_a_finished_job_of_a_sweep_is_not_run_again(images, monkeypatch):
    counted(monkeypatch, FASTER)
    run_on(images / "job", "sweep.resume=true")
    counted(monkeypatch, SLOWER)
    monkeypatch.setattr(run, "_train", lambda *what: pytest.fail("it was run again"))
    run_on(images / "job", "sweep.resume=true")


def test_processes_that_others_start_do_not_choose_each_for_itself(images, monkeypatch, caplog):
    asked = counted(monkeypatch, FASTER)
    parts = parts_of(images, "method=mdsm", *SMALL[:3])
    cfg = configure("data=cifar10", *IMAGE_RUN, "trainer.devices=2", "trainer.accelerator=cpu", f"run_dir={images}")
    monkeypatch.setattr(precision, "started_outside", lambda: "torchrun")
    with caplog.at_level(logging.INFO):
        assert choose_precision(cfg, parts, None) == "32-true"
    assert asked == []
    assert "processes that torchrun has started could choose differently" in caplog.text
    monkeypatch.setattr(precision, "started_outside", lambda: None)
    assert choose_precision(cfg, parts, None) == "bf16-mixed"  # the first process chooses for those that it starts


def test_without_auto_nothing_is_measured(tmp_path, monkeypatch):
    asked = counted(monkeypatch, FASTER)
    train(tmp_path, "method=dsm")
    assert asked == []
    assert chosen_in(tmp_path) == "32-true"


def test_auto_for_a_model_without_convolutions_is_the_run_in_float32(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        train(tmp_path / "auto", "method=dsm", "trainer.precision=auto")
    assert "precision=auto: 32-true, as the model has no convolutions." in caplog.text
    train(tmp_path / "set", "method=dsm")
    assert same(checkpoint(tmp_path / "auto")["state_dict"], checkpoint(tmp_path / "set")["state_dict"])


def test_devices_that_are_not_there_end_in_a_sentence(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ConfigError, match=r"^trainer: "):
        train(tmp_path, "method=dsm", "trainer.precision=auto", "trainer.accelerator=cuda")


def test_methods_have_no_reason_by_default():
    assert Method.float32_reason(None) is None
