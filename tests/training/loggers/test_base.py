"""Tests of TensorBoard's files, and of Lightning's own loggers and callbacks."""

import pytest
import yaml

from eblvm_lit.errors import ConfigError
from eblvm_lit.runs.instantiate import LIBRARIES, resolve_target
from eblvm_lit.training.loggers.csv import read_rows
from helpers.shell import curves, evaluate, of_checkpoint, train

FILTERS = "figures: {filters: {_target_: eblvm_lit.figures.filters.Filters, n: 4}}"
FIGURES = "callbacks.figures={_target_: eblvm_lit.training.callbacks.figures.Figures, save_dir: %s, %s}"


def lightning(kind, name, /, **arguments):
    """Return the override that adds one of Lightning's own loggers or callbacks to a run."""
    described = ", ".join([f"_target_: pytorch_lightning.{kind}s.{name}", *(f"{k}: {v}" for k, v in arguments.items())])
    return f"+{kind}{'s' if kind == 'callback' else ''}.x={{{described}}}"


def test_tensorboard_gets_the_same_curves_as_the_csv_file_and_the_figures(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    train(tmp_path, "logger=tensorboard", "method=dsm", FIGURES % (tmp_path, f"at_validation: true, {FILTERS}"))
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"), {"images": 0, "scalars": 0}).Reload()
    for name in ("train/model_loss", "train/model_lr", "val/loss", "val/fisher", "test/fisher"):
        written = [(row["iteration"], pytest.approx(row[name])) for row in curves(tmp_path) if name in row]
        assert [(event.step, event.value) for event in events.Scalars(name)] == written
    assert {event.step for event in events.Images("figures/filters")} == {5, 10}
    assert (tmp_path / "figures" / "filters_000005.png").exists()


def test_a_logger_of_lightning_gets_the_curves_the_results_and_the_configuration(tmp_path):
    own = lightning("logger", "CSVLogger", save_dir=tmp_path, name="own", version="one", flush_logs_every_n_steps=1)
    train(tmp_path, "method=dsm", own)
    rows = list(read_rows(tmp_path / "own" / "one" / "metrics.csv"))
    losses = [(row["step"], row["val/loss"]) for row in rows if "val/loss" in row]
    assert losses == [(row["iteration"], row["val/loss"]) for row in curves(tmp_path) if "val/loss" in row]
    assert any("test/fisher" in row for row in rows)
    assert yaml.safe_load((tmp_path / "own" / "one" / "hparams.yaml").read_text())["seed"] == 1234


def test_early_stopping_of_lightning_ends_a_run_which_is_evaluated_without_it(tmp_path):
    stop = lightning("callback", "EarlyStopping", monitor="val/loss", patience=1, min_delta=1e9)
    metrics = train(tmp_path, "method=dsm", stop, "trainer.max_steps=20", "n_validations=10")
    assert metrics["iteration"] == 4
    assert evaluate(tmp_path / "e", tmp_path / "checkpoints" / "last.ckpt") == of_checkpoint(metrics)


def test_a_callback_of_lightning_that_does_not_fit_is_refused_by_its_name(tmp_path):
    with pytest.raises(ConfigError, match=r"\(EarlyStopping\) has no key 'patients'"):
        train(tmp_path, "method=dsm", lightning("callback", "EarlyStopping", monitor="val/loss", patients=3))


def test_a_configuration_may_name_classes_of_lightning_and_nothing_reached_through_them():
    assert resolve_target("pytorch_lightning.loggers.MLFlowLogger", LIBRARIES).__name__ == "MLFlowLogger"
    with pytest.raises(ConfigError):
        resolve_target("pytorch_lightning.loggers.mlflow.os.system", LIBRARIES)
