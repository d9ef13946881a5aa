"""What happens around the iterations: curves, progress, figures, the end."""

import re
from types import SimpleNamespace

import pytest

from eblvm_lit.cli import run
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.base import Method
from eblvm_lit.training.callbacks.nonfinite import NonFiniteError
from eblvm_lit.training.loggers.csv import read_curves
from helpers.shell import TINY, checkpoint, configure, curves, train


def test_curves_have_the_losses_norms_and_rates_of_both_levels(tmp_path):
    logged = ["method.n_lower_steps=1", "method.n_unroll=0", "trainer.max_steps=6", "trainer.log_every_n_steps=2"]
    train(tmp_path, *logged, "optimizer.lr=0.02", "n_validations=1")
    rows = {row["iteration"]: row for row in curves(tmp_path)}
    assert list(rows) == [2, 4, 6]
    for row in rows.values():
        assert row["train/lower_lr"] == row["train/upper_lr"] == 0.02
        for level in ("lower", "upper"):
            assert row[f"train/{level}_grad_norm"] > 0
    lower = [row["train/lower_loss"] for row in rows.values()]
    assert len({*lower, *(row["train/upper_loss"] for row in rows.values())}) == 6  # six different numbers
    assert {"val/loss", "val/fisher", "val/posterior_kl"} <= rows[6].keys()


def test_the_rate_counts_neither_the_first_iteration_nor_validations(tmp_path, monkeypatch):
    clock = SimpleNamespace(now=0.0)
    step, validate = Method.training_step, Method.validation_step

    def slow_first_step(self, v, i):
        clock.now += 1000 if self.iteration == 0 else 0.5  # compilation
        return step(self, v, i)

    def slow_validation(self, v, i):
        clock.now += 1000
        return validate(self, v, i)

    monkeypatch.setattr(Method, "training_step", slow_first_step)
    monkeypatch.setattr(Method, "validation_step", slow_validation)
    monkeypatch.setattr("eblvm_lit.training.callbacks.log_curves.time.perf_counter", lambda: clock.now)
    metrics = train(tmp_path, "method=dsm", "trainer.max_steps=12", "n_validations=2", "trainer.log_every_n_steps=3")
    rows = {row["iteration"]: row for row in read_curves(tmp_path / "metrics.csv")}
    assert {i: row.get("train/iterations_per_second") for i, row in rows.items()} == {3: 2, 6: 2, 9: 2, 12: 2}
    assert metrics["train/iterations_per_second"] == 2


def test_a_dear_metric_has_its_own_interval(tmp_path):
    key, run = "+callbacks.evaluation.intervals.fisher", ["method=dsm", "trainer.max_steps=12", "n_validations=4"]
    train(tmp_path, *run, f"{key}=6", "iterations_per_batch=1")
    found = {row["iteration"]: set(row) for row in curves(tmp_path) if "val/loss" in row}
    assert {iteration: "val/fisher" in names for iteration, names in found.items()} == {3: 0, 6: 1, 9: 0, 12: 1}
    with pytest.raises(ConfigError, match="fisher is 4, and validations are 3 iterations apart"):
        train(tmp_path / "b", *run, f"{key}=4", "iterations_per_batch=1")


def test_without_a_terminal_a_line_is_printed_at_each_validation(tmp_path, capsys):
    train(tmp_path / "lines", "method.n_lower_steps=1", "method.n_unroll=0")
    lines = [line for line in capsys.readouterr().out.splitlines() if "val/loss" in line and "/10 " in line]
    assert [line.split()[0] for line in lines] == ["5/10", "10/10"]
    assert re.search(r"lower_loss \S+  upper_loss \S+  val/loss \S+$", lines[0])
    train(tmp_path / "none", "method=dsm", "callbacks.progress=null", "trainer.enable_progress_bar=false")
    assert "it/s" not in capsys.readouterr().out


def test_in_a_terminal_a_bar_counts_iterations(tmp_path, capsys, monkeypatch):
    for name, value in (("COLUMNS", "200"), ("FORCE_COLOR", "1"), ("TERM", "xterm-256color")):
        monkeypatch.setenv(name, value)
    train(tmp_path, "method=dsm", "callbacks.progress.interval=0", "callbacks.evaluation=null")
    out = capsys.readouterr().out
    assert re.search(r"10/10.*model_loss: [\d.e+]+", re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", out))
    assert out.rfind("\x1b[?25h") > out.rfind("\x1b[?25l") > -1  # the cursor is back


def test_figures_can_be_drawn_at_validations(tmp_path):
    crash = ["allow_packages=[helpers]", "+callbacks.crash={_target_: helpers.stopping.CrashAt, iteration: 7}"]
    tiny = [override for override in TINY if override != "callbacks.figures=null"]
    drawn = ["method=dsm", "callbacks.figures.at_validation=true", "callbacks.figures.figures.samples.n_steps=2"]
    with pytest.raises(RuntimeError, match="on purpose"):
        run.train(configure(*tiny, *drawn, f"run_dir={tmp_path}", *crash))
    names = {f"{name}{when}.png" for name in ("curves", "filters", "samples") for when in ("", "_000005")}
    assert {path.name for path in (tmp_path / "figures").iterdir()} == names


def test_what_broke_is_named_by_its_iteration_in_its_block_and_never_saved(tmp_path):
    broken = ["method=dsm", "optimizer.lr=1e30", "n_validations=1"]
    with pytest.raises(NonFiniteError, match=r"model level's .* at iteration 2: lower optimizer.lr"):
        train(tmp_path, *broken, "trainer.log_every_n_steps=10")
    with pytest.raises(NonFiniteError, match="at iteration 4"):
        train(tmp_path, *broken, "callbacks.nonfinite.every=100", "callbacks.checkpoints.every=4")
    assert not (tmp_path / "checkpoints" / "last.ckpt").exists()


def test_checkpoints_are_written_every_so_many_iterations_and_at_the_end(tmp_path, monkeypatch):
    saved, save = [], run.pl.Trainer.save_checkpoint

    def note(self, path, *args, **kwargs):
        saved.append((self.global_step, path.name))
        save(self, path, *args, **kwargs)

    monkeypatch.setattr(run.pl.Trainer, "save_checkpoint", note)
    train(tmp_path, "method=dsm", "callbacks.checkpoints.every=4", "trainer.max_steps=10", "n_validations=1")
    assert sorted(set(saved)) == [(4, "last.ckpt"), (8, "last.ckpt"), (10, "best.ckpt"), (10, "last.ckpt")]


def test_a_run_works_without_callbacks_and_loggers(tmp_path):
    none = [f"callbacks.{name}=null" for name in ("nonfinite", "curves", "checkpoints", "preemption", "progress")]
    bare = ("method=dsm", "logger=none", "test_checkpoint=last", "trainer.enable_progress_bar=false")
    assert train(tmp_path, *bare, *none)["iteration"] == 10
    assert {path.name for path in tmp_path.iterdir()} == {"config.yaml", "metrics.json"}


def test_the_bests_of_a_run_survive_values_that_are_not_finite(tmp_path, monkeypatch):
    # nonfinite off: the best is the best of what can be compared
    losses = iter([float("nan"), 3.0, 2.0, float("nan"), 4.0])

    def scripted(self):
        self.log("val/loss", next(losses), logger=False)

    monkeypatch.setattr(Method, "on_validation_epoch_end", scripted)
    train(tmp_path, "method=dsm", "n_validations=5", "callbacks.nonfinite=null", "test_checkpoint=best")
    assert checkpoint(tmp_path, "best")["global_step"] == 6
