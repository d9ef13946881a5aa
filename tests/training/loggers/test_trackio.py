"""Tests of runs in Trackio's local files, on this machine."""

import socket
import sys

import pytest

from eblvm_lit.errors import ConfigError
from eblvm_lit.runs.instantiate import instantiate
from helpers.shell import curves, train

FILTERS = "{filters: {_target_: eblvm_lit.figures.filters.Filters, n: 4}}"
FIGURES = f"{{_target_: eblvm_lit.training.callbacks.figures.Figures, save_dir: out, figures: {FILTERS}}}"


def test_a_resumed_run_is_one_run_with_settings_curves_results_and_figures(tmp_path, monkeypatch):
    # Trackio reads this variable when it is imported, which happens only below.
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    trackio = pytest.importorskip("trackio")
    words = ("logger=trackio", "method=dsm", f"callbacks.figures={FIGURES}")
    train(tmp_path / "one", *words)
    metrics = train(tmp_path / "two", *words, "trainer.max_steps=20", f"ckpt={tmp_path / 'one'}")
    trackio.finish()
    (run,) = trackio.Api().runs("eblvm_lit")
    assert (run.name, run.config["seed"]) == (f"{tmp_path.name} one", 1234)
    rows = trackio.sqlite_storage.SQLiteStorage.get_logs("eblvm_lit", run.name)
    logged = {(row["step"], row["train/model_loss"]) for row in rows if "train/model_loss" in row}
    assert logged == {(row["iteration"], row["train/model_loss"]) for row in curves(tmp_path / "two")}
    assert [row["test/fisher"] for row in rows if "test/fisher" in row][-1] == metrics["test/fisher"]
    assert any("figures/filters" in row for row in rows)


def test_a_stored_token_of_the_hub_is_not_looked_up(tmp_path, monkeypatch):
    asked = []

    def refuse(address, *args, **kwargs):
        asked.append(address)
        raise OSError("no network")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setenv("HF_TOKEN", "hf_stored")
    trackio = pytest.importorskip("trackio")
    described = {
        "_target_": "eblvm_lit.training.loggers.trackio.TrackioRun",
        "save_dir": str(tmp_path),
        "project": "mine",
    }
    instantiate(described, "logger.trackio").log_metrics({"train/loss": 1.0}, 1)
    trackio.finish()
    assert not asked


def test_a_missing_package_is_reported_before_the_run(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "trackio", None)
    described = {"_target_": "eblvm_lit.training.loggers.trackio.TrackioRun", "save_dir": "out", "project": "mine"}
    with pytest.raises(ConfigError, match=r"logger\.trackio"):
        instantiate(described, "logger.trackio")
