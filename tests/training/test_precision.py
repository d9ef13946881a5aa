"""Tests of the option trainer.precision: what ``auto`` chooses by device and method, and what is refused."""

import pytest
import torch

from eblvm_lit.errors import ConfigError
from eblvm_lit.runs.build import build
from eblvm_lit.training import precision
from eblvm_lit.training.precision import choose_precision
from helpers.shell import checkpoint, configured, tiny, train

CPU = torch.device("cpu")
SMALL = ("data=cifar10", "data.size=8", "model.network.n_blocks=1", "model.network.channels=2")
POSTERIOR = ("posterior.network.widths=[2,2,2]",)


@pytest.fixture(autouse=True)
def units(monkeypatch):
    """Pretend that the device has hardware units for bfloat16."""
    monkeypatch.setattr(precision, "multiplies_bfloat16", lambda device: True)


def method_of(folder, *overrides):
    return build(configured(*overrides, f"run_dir={folder}", f"outputs_dir={folder}")).method


NEEDS_FLOAT32 = {
    "small difference": ("method=cd", *SMALL),
    "second derivatives": ("method=ssm", *SMALL),
    "differentiates the lower": ("method=bimdsm", "hypergradient=unroll", "method.n_unroll=2", *SMALL, *POSTERIOR),
    "no convolutions": ("method=dsm", "data=checkerboard"),
    "logits": ("method=nce", *SMALL),
    "unrolled": (
        *("method=bidvl", "data=cifar10", "data.size=8", "method.n_unroll=1"),
        *(f"{part}.width=2" for part in ("model.network", "posterior.network", "generator")),
    ),
}


def test_models_that_need_float32_keep_it(tmp_path):
    for reason, options in NEEDS_FLOAT32.items():
        chosen, said = choose_precision("auto", method_of(tmp_path, *options), CPU)
        assert chosen == "32-true"
        assert reason in said


def test_convolutions_take_bfloat16_where_the_device_has_units(tmp_path, monkeypatch):
    method = method_of(tmp_path, "method=vages_mdsm", *SMALL, *POSTERIOR)
    assert choose_precision("auto", method, CPU)[0] == "bf16-mixed"
    monkeypatch.setattr(precision, "multiplies_bfloat16", lambda device: False)
    assert choose_precision("auto", method, CPU)[0] == "32-true"


def test_half_precision_with_a_loss_scaler_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"trainer\.precision must be .*, not '16-mixed'"):
        train(tmp_path, "method=dsm", "trainer.precision=16-mixed")


def test_a_run_stores_its_choice_and_a_resumed_run_keeps_it(tmp_path):
    train(tmp_path, "method=dsm", "trainer.precision=auto", "trainer.max_steps=4", "n_validations=1")
    assert checkpoint(tmp_path)["eblvm_lit"]["config"]["trainer"]["precision"] == "32-true"
    method = build(tiny(tmp_path, "method=dsm")).method
    assert choose_precision("auto", method, CPU, before="bf16-mixed")[0] == "bf16-mixed"
