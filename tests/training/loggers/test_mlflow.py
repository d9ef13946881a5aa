"""Tests of runs in MLflow's local store, on this machine."""

import pytest

from helpers.shell import curves, train

mlflow = pytest.importorskip("mlflow")
FILTERS = "{filters: {_target_: eblvm_lit.figures.filters.Filters, n: 4}}"
FIGURES = f"{{_target_: eblvm_lit.training.callbacks.figures.Figures, save_dir: out, figures: {FILTERS}}}"


def test_a_resumed_run_is_one_run_with_settings_curves_results_and_figures(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("logger=mlflow", "method=dsm", f"callbacks.figures={FIGURES}")
    train(tmp_path / "one", *words)
    metrics = train(tmp_path / "two", *words, "trainer.max_steps=20", f"ckpt={tmp_path / 'one'}")
    client = mlflow.MlflowClient("sqlite:///mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("eblvm_lit").experiment_id])
    assert (run.info.status, run.data.params["seed"]) == ("FINISHED", "1234")
    assert run.data.metrics["test/fisher"] == metrics["test/fisher"]
    logged = {(point.step, point.value) for point in client.get_metric_history(run.info.run_id, "train/model_loss")}
    assert logged == {(row["iteration"], row["train/model_loss"]) for row in curves(tmp_path / "two")}
    names = [artifact.path for artifact in client.list_artifacts(run.info.run_id, "images")]
    assert any("figures~filters+step+20" in name for name in names)
