"""Tests of the validation metrics that a run returns with its final metrics.

They check to which checkpoint the validation metrics belong, and that a search finds its metric among them.
"""

import json

from helpers.shell import checkpoint, curves, evaluate, of_checkpoint, train

DSM = ("method=dsm", "trainer.max_steps=12", "n_validations=3", "test_checkpoint=last")


def validated(folder):
    """Return the validation metrics of a run by iteration."""
    rows = {row["iteration"]: {k: v for k, v in row.items() if k.startswith("val/")} for row in curves(folder)}
    return {iteration: row for iteration, row in rows.items() if row}


def of_validation(metrics, prefix="val/"):
    return {name: value for name, value in metrics.items() if name.startswith(prefix)}


def test_the_last_validation_is_returned_written_kept_by_a_resumed_run_and_given_by_evaluate(tmp_path):
    metrics = train(tmp_path / "run", *DSM)
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    assert of_validation(metrics) == validated(tmp_path / "run")[12]
    assert of_validation(metrics).keys() == {"val/loss", "val/fisher"}
    assert json.loads((tmp_path / "run" / "metrics.json").read_text()) == metrics
    assert evaluate(tmp_path / "evaluated", last) == of_checkpoint(metrics)
    assert of_checkpoint(train(tmp_path / "again", *DSM, f"ckpt={last}")) == of_checkpoint(metrics)


def test_the_validation_belongs_to_the_tested_checkpoint_and_a_search_finds_it(tmp_path):
    # with this learning rate the loss rises, so that the best checkpoint is not the last one
    both = ("test_checkpoint=both", "optimizer.lr=3", "optimized_metric=val_best/loss")
    metrics = train(tmp_path, *DSM, *both)
    rows = validated(tmp_path)
    best = min(rows, key=lambda iteration: rows[iteration]["val/loss"])
    assert best == metrics["best_iteration"] < 12
    assert of_validation(metrics) == rows[12]
    assert of_validation(metrics, "val_best/") == {k.replace("val", "val_best"): v for k, v in rows[best].items()}
    found = evaluate(tmp_path / "evaluated", tmp_path / "checkpoints" / "best.ckpt")
    assert of_validation(found) == rows[best]


def test_a_metric_with_an_interval_picks_the_best_of_its_own_iterations_and_each_checkpoint_has_its_values(tmp_path):
    spaced = ("+callbacks.evaluation.intervals.fisher=8", "callbacks.checkpoints.keep=null")
    metrics = train(tmp_path, *DSM, *spaced, "callbacks.checkpoints.monitor=val/fisher", "test_checkpoint=both")
    rows = validated(tmp_path)
    values = {iteration: row["val/fisher"] for iteration, row in rows.items() if "val/fisher" in row}
    assert set(values) == {8, 12}  # iteration 12 is the last validation, which always computes the metric
    assert of_validation(metrics) == rows[12]
    assert metrics["best_iteration"] == min(values, key=values.get)
    for iteration in (4, 8, 12):
        assert checkpoint(tmp_path, f"iteration_{iteration}")["validation"] == rows[iteration]
