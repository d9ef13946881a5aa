"""Searches: validation metrics are final metrics, and Optuna finds values."""

import json
import math

import pytest

from helpers.shell import checkpoint, curves, evaluate, of_checkpoint, train

DSM = ("method=dsm", "trainer.max_steps=12", "n_validations=3", "test_checkpoint=last")


# --- validation metrics -----------------------------------------------------------------------------------


def validated(folder):
    """The values of each validation, by iteration."""
    rows = {row["iteration"]: {k: v for k, v in row.items() if k.startswith("val/")} for row in curves(folder)}
    return {iteration: row for iteration, row in rows.items() if row}


def of_validation(metrics, prefix="val/"):
    return {name: value for name, value in metrics.items() if name.startswith(prefix)}


def test_the_last_validation_is_returned_written_and_given_by_evaluate(tmp_path):
    metrics = train(tmp_path / "run", *DSM)
    assert of_validation(metrics) == validated(tmp_path / "run")[12]
    assert of_validation(metrics).keys() == {"val/loss", "val/fisher"}
    assert json.loads((tmp_path / "run" / "metrics.json").read_text()) == metrics
    found = evaluate(tmp_path / "evaluated", tmp_path / "run" / "checkpoints" / "last.ckpt")
    assert found == of_checkpoint(metrics)


def test_the_validation_belongs_to_the_tested_checkpoint(tmp_path):
    metrics = train(tmp_path, *DSM, "test_checkpoint=both", "optimizer.lr=3")  # the loss rises
    rows = validated(tmp_path)
    best = min(rows, key=lambda iteration: rows[iteration]["val/loss"])
    assert best == metrics["best_iteration"] < 12
    assert of_validation(metrics) == rows[12]
    assert of_validation(metrics, "val_best/") == {k.replace("val", "val_best"): v for k, v in rows[best].items()}
    found = evaluate(tmp_path / "evaluated", tmp_path / "checkpoints" / "best.ckpt")
    assert of_validation(found) == rows[best]


def test_a_metric_with_an_interval_is_computed_at_the_last_validation_too(tmp_path):
    metrics = train(tmp_path, *DSM, "+callbacks.evaluation.intervals.fisher=8")
    rows = validated(tmp_path)
    assert [iteration for iteration in rows if "val/fisher" in rows[iteration]] == [8, 12]
    assert of_validation(metrics) == rows[12]


def test_a_checkpoint_has_no_value_of_other_weights(tmp_path):
    spaced = ("+callbacks.evaluation.intervals.fisher=8", "callbacks.checkpoints.keep=null")
    train(tmp_path, *DSM, *spaced)
    rows = validated(tmp_path)
    for iteration in (4, 8, 12):
        held = checkpoint(tmp_path, f"iteration_{iteration}")["validation"]
        assert held == {name: value for name, value in rows[iteration].items() if name.startswith("val/")}


def test_a_metric_with_an_interval_can_pick_the_best(tmp_path):
    spaced = ("+callbacks.evaluation.intervals.fisher=8", "callbacks.checkpoints.monitor=val/fisher")
    metrics = train(tmp_path, *DSM, *spaced, "test_checkpoint=best")
    rows = validated(tmp_path)
    values = {iteration: row["val/fisher"] for iteration, row in rows.items() if "val/fisher" in row}
    assert set(values) == {8, 12}
    assert metrics["iteration"] == min(values, key=values.get)
    assert metrics["val/fisher"] == min(values.values())


def test_a_run_that_is_resumed_at_its_end_keeps_the_last_validation(tmp_path):
    metrics = train(tmp_path / "run", *DSM)
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    again = train(tmp_path / "again", *DSM, f"ckpt={last}")
    assert of_checkpoint(again) == of_checkpoint(metrics)


def test_without_checkpoints_the_last_validation_is_there_too(tmp_path):
    metrics = train(tmp_path, *DSM, "callbacks.checkpoints=null")
    assert of_validation(metrics) == validated(tmp_path)[12]


@pytest.mark.parametrize(
    "overrides",
    [
        ["optimized_metric=val/loss"],
        ["optimized_metric=val/fisher"],
        ["optimized_metric=test/log_likelihood"],
        ["optimized_metric=val/posterior_kl", "method=bidsm"],
        ["optimized_metric=val/fisher", "+callbacks.evaluation.intervals.fisher=16"],
        ["optimized_metric=test_best/fisher", "test_checkpoint=both"],
        ["optimized_metric=val_best/loss", "test_checkpoint=both"],
        ["optimized_metric=test_ema/fisher", "eval_weights=both", "callbacks=ema"],
        ["optimized_metric=train/iterations_per_second"],
    ],
)
def test_a_metric_that_the_run_will_have_is_there(overrides, tmp_path):
    name = overrides[0].partition("=")[2]
    assert math.isfinite(train(tmp_path, *DSM, *overrides)[name])
