"""Tests of the start of a run: what it says about the precision that it will use."""

import pytest
import torch

from eblvm_lit.runs import start
from eblvm_lit.training import precision
from helpers.shell import configured


@pytest.mark.parametrize(
    ("wanted", "has_units", "warns"),
    [("bf16-mixed", False, True), ("bf16-mixed", True, False), ("32-true", False, False)],
)
def test_the_log_warns_if_the_device_emulates_bfloat16(wanted, has_units, warns, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(precision, "multiplies_bfloat16", lambda device: has_units)
    trainer = configured(f"trainer.precision={wanted}", f"run_dir={tmp_path}").trainer
    assert start.choose_precision(trainer, torch.nn.Module(), None) == wanted
    assert ("set trainer.precision=32-true" in caplog.text) == warns
