"""Tests of the metrics and figures that a run computes, and of its messages about those that do not apply."""

import pytest

from eblvm_lit.runs import run
from helpers.shell import configure, evaluate

METRICS = "evaluation@callbacks.evaluation.metrics"
FIGURES = "figures@callbacks.figures.figures"
UNDRAWN = [f"callbacks.figures.figures.{name}=null" for name in ("density", "samples", "curves")]

SM = ("method=sm", "model=gaussian", "callbacks.figures.figures.energies=null")


def few(folder, *options, data="checkerboard"):
    small = ("debug=fast", f"data={data}", "model.h_dim=3", "trainer.max_steps=2", "n_validations=1")
    return run.train(configure(*small, f"run_dir={folder}", f"cache_dir={folder}", *UNDRAWN, *options))


def about(records):
    """Return the messages about metrics and figures that do not apply, before and after the first iteration."""
    said = [record.getMessage() for record in records]
    first = next(i for i, words in enumerate(said) if words.startswith("compile="))
    return [[words for words in part if "not apply" in words] for part in (said[:first], said[first:])]


def test_what_was_chosen_and_does_not_apply_is_named_once_before_the_first_iteration(tmp_path, caplog):
    caplog.set_level("INFO")
    found = few(tmp_path, f"{METRICS}=fid", f"{FIGURES}=representation", *SM)
    assert "test/log_likelihood" in found
    before, after = about(caplog.records)
    assert before == [
        "These metrics do not apply to ScoreMatching on Checkerboard, and are left out: fid.",
        "These figures do not apply to ScoreMatching on Checkerboard, and are left out: tsne.",
    ]
    assert after == []
    caplog.clear()
    again = evaluate(tmp_path / "again", tmp_path)
    assert again["test/log_likelihood"] == pytest.approx(found["test/log_likelihood"])
    assert caplog.text.count("metrics do not apply") == 1


def test_default_metrics_and_figures_give_no_messages(tmp_path, caplog):
    few(tmp_path, "method=cd", data="digits")
    assert "not apply" not in caplog.text
