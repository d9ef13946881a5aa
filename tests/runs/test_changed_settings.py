"""Tests of the settings that must not change when a run is resumed."""

import pytest
from omegaconf import OmegaConf

from eblvm_lit.errors import ConfigError
from eblvm_lit.runs.resume import changed_settings
from helpers.shell import checkpoint, train

SHORT = ("method=dsm", "trainer.max_steps=4", "n_validations=2", "summary=false")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return the last checkpoint of a run."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    train(folder, *SHORT)
    return folder / "checkpoints" / "last.ckpt"


LONGER = ("trainer.max_steps=6", "n_validations=3")


def test_a_changed_setting_is_refused_by_its_name_unless_it_is_allowed(finished, tmp_path):
    longer = (*SHORT, *LONGER, f"ckpt={finished}")
    change = ("seed=7", "noise.std=0.3")
    with pytest.raises(ConfigError, match=r"resume.allow=\[optimizer\]\.$"):
        train(tmp_path / "run", *longer, "optimizer=sgd")
    with pytest.raises(ConfigError, match=r"resume.allow=\[seed,noise.std\]\.$"):
        train(tmp_path / "run", *longer, *change)
    train(tmp_path / "told", *longer, *change, "resume.allow=[seed,noise.std]")
    assert checkpoint(tmp_path / "told")["global_step"] == 6


def test_incidental_settings_may_differ(finished, tmp_path):
    free = ("threads=1", "iterations_per_batch=2", "callbacks.checkpoints.every=2", "method.compile=false", "tf32=true")
    train(tmp_path / "run", *SHORT, *LONGER, *free, "callbacks=ema", f"ckpt={finished}", f"cache_dir={tmp_path}")
    assert checkpoint(tmp_path / "run")["global_step"] == 6


def test_last_finds_a_run_whose_differences_are_allowed(finished, tmp_path):
    change = ("optimizer.lr=0.5", f"outputs_dir={finished.parents[2]}", "ckpt=last")
    train(tmp_path / "run", *SHORT, *LONGER, *change, "resume.allow=[optimizer]")
    assert checkpoint(tmp_path / "run")["global_step"] == 6


def test_a_value_is_told_where_it_was_set():
    """Check that a change is named by the key that was set, and not by keys that are interpolated from it."""
    cfg = OmegaConf.create({"lr": 0.1, "method": {"lower": {"lr": "${lr}"}, "sizes": ["${n}", 1]}, "n": 2, "a": None})
    before = {"lr": 0.1, "method": {"lower": {"lr": 0.3}, "sizes": [3, 1]}, "n": 3, "a": {}}
    assert changed_settings(before, cfg) == {"method.lower.lr": "0.3, not 0.1", "n": "3, not 2"}
    assert changed_settings(before, cfg, ["method", "n"]) == {}
    assert changed_settings({**before, "a": [1]}, cfg, ["method", "n"]) == {"a": "[1], not None"}
