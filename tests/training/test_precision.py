"""trainer.precision: what auto chooses by device and method, and what is refused."""

import pytest
import torch

from eblvm_lit.cli.build import build
from eblvm_lit.errors import ConfigError
from eblvm_lit.training import precision
from eblvm_lit.training.precision import choose_precision
from helpers.shell import checkpoint, configure, tiny, train

CPU = torch.device("cpu")
SMALL = ("data=cifar10", "data.size=8", "model.network.n_blocks=1", "model.network.channels=2")
POSTERIOR = ("posterior.network.widths=[2,2,2]",)
NARROW = [f"{part}.width=2" for part in ("model.network", "posterior.network", "generator")]


@pytest.fixture(autouse=True)
def units(monkeypatch):
    """A device with units for bfloat16."""
    torch.set_default_dtype(torch.float32)
    monkeypatch.setattr(precision, "multiplies_bfloat16", lambda device: True)


def method_of(folder, *overrides):
    return build(configure(*overrides, f"run_dir={folder}", f"outputs_dir={folder}")).method


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (("method=cd", *SMALL), "the gradient is a small difference of two means"),
        (("method=nce", *SMALL), "logits are small differences"),
        (("method=snl", *SMALL), "weights are exponentials of small differences"),
        (("method=ssm", *SMALL), "second derivatives of the energy"),
        (
            ("method=bimdsm", "hypergradient=unroll", "method.n_unroll=2", *SMALL, *POSTERIOR),
            "differentiates the lower",
        ),
        (("method=dsm", "data=checkerboard"), "the model has no convolutions"),
        (
            ("method=bidvl", "data=cifar10", "data.size=8", "method.n_unroll=1", *NARROW),
            "differentiates unrolled steps",
        ),
    ],
)
def test_what_needs_float32_keeps_it(overrides, reason, tmp_path):
    chosen, said = choose_precision("auto", method_of(tmp_path, *overrides), CPU)
    assert chosen == "32-true"
    assert reason in said


def test_convolutions_take_bfloat16_where_the_device_has_units(tmp_path, monkeypatch):
    for overrides in (("method=mdsm", *SMALL), ("method=vages_mdsm", *SMALL, *POSTERIOR)):
        method = method_of(tmp_path, *overrides)
        assert choose_precision("auto", method, CPU) == ("bf16-mixed", "as this cpu has units for it")
    monkeypatch.setattr(precision, "multiplies_bfloat16", lambda device: False)
    assert choose_precision("auto", method, CPU) == ("32-true", "as this cpu has no units for bfloat16")


def test_half_precision_with_a_loss_scaler_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"^trainer.precision=16-mixed is not supported"):
        train(tmp_path, "method=dsm", "trainer.precision=16-mixed")


def test_a_run_stores_its_choice_and_a_resumed_run_keeps_it(tmp_path):
    train(tmp_path, "method=dsm", "trainer.precision=auto", "trainer.max_steps=4", "n_validations=1")
    assert checkpoint(tmp_path)["eblvm_lit"]["config"]["trainer"]["precision"] == "32-true"
    method = build(tiny(tmp_path, "method=dsm")).method
    assert choose_precision("auto", method, CPU, before="bf16-mixed") == ("bf16-mixed", "as in the checkpoint")
