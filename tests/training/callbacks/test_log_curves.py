"""Tests of callbacks around the iterations: curves, progress, non-finite values, and the best checkpoint."""

import re
from types import SimpleNamespace

import pytest

from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.base import Method
from eblvm_lit.training.callbacks.nonfinite import NonFiniteError
from eblvm_lit.training.loggers.csv import read_rows
from helpers.shell import checkpoint, curves, train


def test_curves_have_the_losses_norms_and_rates_of_both_levels(tmp_path):
    logged = ["method=bidsm", "method.n_lower_steps=1", "method.n_unroll=0", "trainer.log_every_n_steps=2"]
    train(tmp_path, *logged, "trainer.max_steps=6", "optimizer.lr=0.02", "n_validations=1")
    rows = {row["iteration"]: row for row in curves(tmp_path)}
    assert list(rows) == [2, 4, 6]
    for row in rows.values():
        assert row["train/lower_lr"] == row["train/upper_lr"] == 0.02
        for level in ("lower", "upper"):
            assert row[f"train/{level}_grad_norm"] > 0
    losses = {row[f"train/{level}_loss"] for row in rows.values() for level in ("lower", "upper")}
    assert len(losses) == 6  # the losses of both levels are different numbers in all three rows
    assert {"val/loss", "val/fisher", "val/posterior_kl"} <= rows[6].keys()


def test_the_rate_counts_neither_the_first_iteration_nor_validations(tmp_path, monkeypatch):
    clock = SimpleNamespace(now=0.0)

    def slow(step, seconds):
        def timed(self, v, i):
            clock.now += seconds(self)
            return step(self, v, i)

        return timed

    compiling = slow(Method.training_step, lambda method: 1000 if method.iteration == 0 else 0.5)
    monkeypatch.setattr(Method, "training_step", compiling)
    monkeypatch.setattr(Method, "validation_step", slow(Method.validation_step, lambda method: 1000))
    monkeypatch.setattr("eblvm_lit.training.callbacks.log_curves.time.perf_counter", lambda: clock.now)
    metrics = train(tmp_path, "method=dsm", "trainer.max_steps=12", "n_validations=2", "trainer.log_every_n_steps=3")
    rows = {row["iteration"]: row for row in read_rows(tmp_path / "metrics.csv")}
    assert {i: row.get("train/iterations_per_second") for i, row in rows.items()} == {3: 2, 6: 2, 9: 2, 12: 2}
    assert metrics["train/iterations_per_second"] == 2


def test_an_expensive_metric_has_its_own_interval(tmp_path):
    key = "+callbacks.evaluation.intervals.fisher"
    run = ["method=dsm", "trainer.max_steps=12", "n_validations=4"]
    train(tmp_path, *run, f"{key}=6", "iterations_per_batch=1")
    found = {row["iteration"]: set(row) for row in curves(tmp_path) if "val/loss" in row}
    assert {iteration: "val/fisher" in names for iteration, names in found.items()} == {3: 0, 6: 1, 9: 0, 12: 1}
    with pytest.raises(ConfigError, match="fisher is 4, and validations are 3 iterations apart"):
        train(tmp_path / "b", *run, f"{key}=4", "iterations_per_batch=1")


def test_without_a_terminal_a_line_is_printed_at_each_validation(tmp_path, capsys):
    train(tmp_path / "lines", "method=bidsm", "method.n_lower_steps=1", "method.n_unroll=0")
    lines = [line for line in capsys.readouterr().out.splitlines() if "val/loss" in line and "/10 " in line]
    assert [line.split()[0] for line in lines] == ["5/10", "10/10"]
    assert re.search(r"lower_loss \S+  upper_loss \S+  val/loss \S+$", lines[0])


def test_a_non_finite_value_is_named_with_its_iteration_and_never_saved(tmp_path):
    broken = ["method=dsm", "optimizer.lr=1e30", "n_validations=1"]
    with pytest.raises(NonFiniteError, match=r"model level's .* at iteration 2: lower optimizer.lr"):
        train(tmp_path / "one", *broken, "trainer.log_every_n_steps=10")
    with pytest.raises(NonFiniteError, match="at iteration 4"):
        train(tmp_path / "two", *broken, "callbacks.nonfinite.every=100", "callbacks.checkpoints.every=4")
    assert not list(tmp_path.rglob("last.ckpt"))


def test_a_run_works_without_callbacks_and_loggers(tmp_path):
    none = [f"callbacks.{name}=null" for name in ("nonfinite", "curves", "preemption", "progress")]
    bare = ("method=dsm", "logger=none", "trainer.enable_progress_bar=false")
    assert train(tmp_path, *bare, *none)["iteration"] == 10
    files = {"config.yaml", "metrics.json", "quantities.json", "checkpoints"}
    assert {path.name for path in tmp_path.iterdir()} == files


def test_the_bests_of_a_run_survive_values_that_are_not_finite(tmp_path, monkeypatch):
    # Without the callback nonfinite, the best checkpoint is chosen among those with a finite loss.
    losses = iter([float("nan"), 3.0, 2.0, float("nan"), 4.0])

    def scripted(self):
        self.log("val/loss", next(losses), logger=False)

    monkeypatch.setattr(Method, "on_validation_epoch_end", scripted)
    train(tmp_path, "method=dsm", "n_validations=5", "callbacks.nonfinite=null", "test_checkpoint=best")
    assert checkpoint(tmp_path, "best")["global_step"] == 6
