"""Searches: validation metrics are final metrics, and Optuna finds values."""

import json
import math

import pytest
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.errors import CompactHydraException
from omegaconf import OmegaConf

from eblvm_lit.cli import cli
from eblvm_lit.cli.sweeps import launcher
from eblvm_lit.cli.sweeps.search import is_search, prepare_search, value_of_divergence
from eblvm_lit.errors import ConfigError, DataError
from eblvm_lit.training.callbacks.nonfinite import NonFiniteError
from launching import run_script
from shell import checkpoint, curves, evaluate, of_checkpoint, train

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


def test_a_checkpoint_of_an_earlier_version_has_no_validation(tmp_path):
    metrics = train(tmp_path, *DSM)
    path = tmp_path / "checkpoints" / "last.ckpt"
    content = checkpoint(tmp_path)
    del content["validation"]
    torch.save(content, path)
    found = evaluate(tmp_path / "evaluated", path)
    assert found == {k: v for k, v in of_checkpoint(metrics).items() if not k.startswith("val/")}
    for damaged in (None, [], {"val/loss": "low"}, {3: 1.0}):
        torch.save({**content, "validation": damaged}, path)
        with pytest.raises(DataError, match="its validation is damaged"):
            evaluate(tmp_path / "evaluated", path)


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


# --- what a search needs ----------------------------------------------------------------------------------

BASIC = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"


def search_config(folder, metric, *explicit, launcher=BASIC):
    """What Hydra knows of a search, after the command line has set ``explicit`` keys of the sweeper."""
    sweeper = {"direction": "minimize", "n_jobs": 2, "sampler": {"seed": None}}
    config = OmegaConf.create({"optimized_metric": metric, "seed": 7})
    hydra = {"sweeper": sweeper, "launcher": {"_target_": launcher}, "overrides": {"hydra": [], "task": []}}
    config.hydra = {**hydra, "sweep": {"dir": str(folder / "search")}}
    for text in explicit:
        key, _, value = text.partition("=")
        OmegaConf.update(config, key, int(value) if value.isdigit() else value)
        config.hydra.overrides.hydra.append(text)
    return config


@pytest.mark.parametrize(
    ("metric", "explicit", "found"),
    [
        ("val/loss", [], ("minimize", 1, 7)),
        ("val/log_likelihood", [], ("maximize", 1, 7)),
        ("val/loss", ["hydra.sweeper.direction=maximize"], ("maximize", 1, 7)),
        ("val/own", ["hydra.sweeper.direction=minimize"], ("minimize", 1, 7)),
        ("val/loss", ["hydra.sweeper.n_jobs=3", "hydra.sweeper.sampler.seed=0"], ("minimize", 3, 0)),
    ],
)
def test_what_follows_from_the_metric_is_set_for_the_search_and_its_jobs(metric, explicit, found, tmp_path):
    config = search_config(tmp_path, metric, *explicit)
    assert is_search(config)
    prepare_search(config)
    sweeper = config.hydra.sweeper
    assert (sweeper.direction, sweeper.n_jobs, sweeper.sampler.seed) == found
    keys = {text.partition("=")[0]: text.partition("=")[2] for text in config.hydra.overrides.hydra}
    assert keys["hydra.sweeper.direction"] == found[0]
    assert len(keys) == len(config.hydra.overrides.hydra) == 3


def test_processes_that_share_a_search_do_not_propose_the_same(tmp_path):
    config = search_config(tmp_path, "val/loss", "hydra.sweeper.storage=sqlite:///search.db")
    prepare_search(config)
    assert config.hydra.sweeper.sampler.seed is None


def test_jobs_side_by_side_are_proposed_side_by_side(tmp_path):
    config = search_config(
        tmp_path, "val/loss", launcher="hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher"
    )
    prepare_search(config)
    assert config.hydra.sweeper.n_jobs == 2


@pytest.mark.parametrize(
    ("metric", "sentence"),
    [
        (None, r"^A search needs the name of the metric that it optimizes: optimized_metric=val/loss\.$"),
        ("val/own", "optimized_metric=val/own: say by hydra.sweeper.direction=minimize or maximize"),
    ],
)
def test_a_search_without_a_metric_or_a_direction_is_refused(metric, sentence, tmp_path):
    with pytest.raises(ConfigError, match=sentence):
        prepare_search(search_config(tmp_path, metric))


def test_a_search_by_the_test_split_is_warned_of(tmp_path, caplog):
    prepare_search(search_config(tmp_path, "test/fisher"))
    assert "optimized_metric=test/fisher: a search by the test split finds too good a value" in caplog.text
    caplog.clear()
    prepare_search(search_config(tmp_path, "val/fisher"))
    assert not caplog.text


@pytest.mark.parametrize(("way", "worst"), [("minimize", math.inf), ("maximize", -math.inf), (None, None)])
def test_a_job_that_diverges_has_the_worst_value_in_a_search_alone(way, worst, monkeypatch):
    def diverge(cfg):
        raise NonFiniteError("The loss is nan.")

    sweeper = {} if way is None else {"direction": way}
    monkeypatch.setattr(HydraConfig, "initialized", lambda: True)
    monkeypatch.setattr(HydraConfig, "get", lambda: OmegaConf.create({"sweeper": sweeper, "overrides": {"task": []}}))
    monkeypatch.setattr(cli, "in_sweep", lambda: True)
    cfg = OmegaConf.create({"sweep": {"resume": False}, "optimized_metric": "val/loss"})
    assert value_of_divergence() == worst
    if worst is None:
        with pytest.raises(CompactHydraException):
            cli.main(diverge, cfg)
    else:
        assert cli.main(diverge, cfg) == worst


# --- Optuna -----------------------------------------------------------------------------------------------

TINY_SEARCH = (
    *("-m", "hydra/sweeper=optuna", "debug=fast", "data=line_blobs", *DSM, "callbacks.figures=null"),
    "optimizer.lr=choice(0.01,1e30)",  # with the second the first iterations overflow
)


def optuna(folder, *args):
    """A search in a process of its own: its exit code and what it printed."""
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="needs pip install -e '.[optuna]'")
    return run_script("train.py", *TINY_SEARCH, *args, folder=folder)


def test_optuna_finds_the_best_a_job_that_diverges_does_not_end_it_and_it_is_resumed(tmp_path):
    code, told = optuna(tmp_path, "optimized_metric=val/loss", "hydra.sweeper.n_trials=3")
    assert code == 0, told
    (folder,) = tmp_path.glob("multirun/*/*")
    values = {}
    for job in range(3):
        lr, metrics = OmegaConf.load(folder / str(job) / "config.yaml").optimizer.lr, folder / str(job) / "metrics.json"
        values.setdefault(lr, []).append(json.loads(metrics.read_text())["val/loss"] if metrics.is_file() else math.inf)
    assert set(values) == {0.01, 1e30}, "the sampler's seed decides which are tried"
    assert values[1e30] == [math.inf] * len(values[1e30])
    found = OmegaConf.load(folder / "optimization_results.yaml")
    assert (found.best_params["optimizer.lr"], found.best_value) == (0.01, min(values[0.01]))
    assert f"WARNING: {len(values[1e30])} of 3 jobs in " in told
    code, told = optuna(tmp_path, "optimized_metric=val/loss", "hydra.sweeper.n_trials=4", "sweep.resume=true")
    assert code == 0, told
    assert told.count("has finished before") == len(values[0.01])
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {"0", "1", "2", "3"}


def test_a_search_for_what_will_not_be_there_ends_with_its_first_job(tmp_path):
    code, told = optuna(tmp_path, "optimized_metric=val/fid")
    assert code != 0
    assert "optimized_metric=val/fid: this run will have no such metric; it will have iteration, " in told
    assert "Traceback" not in told
    (folder,) = tmp_path.glob("multirun/*/*")
    assert [path.name for path in folder.iterdir() if path.is_dir()] == ["0"]
    assert not (folder / "0" / "metrics.json").exists()


def test_optuna_without_its_plugin_says_what_to_install(monkeypatch):
    monkeypatch.setattr(launcher, "_is_installed", lambda package: False)
    with pytest.raises(SystemExit) as leave:
        launcher.exit_without_sweeper(["-m", "hydra/sweeper=optuna"])
    assert (
        leave.value.code
        == "ERROR: hydra/sweeper=optuna is not installed: pip install hydra-optuna-sweeper 'sqlalchemy<2'."
    )


def test_an_interval_needs_a_search():
    hydra = {"sweeper": {"params": None}, "overrides": {"task": ["method=dsm", "optimizer.lr=interval(0.1,1)"]}}
    with pytest.raises(ConfigError, match=r"^optimizer.lr=interval\(0.1,1\) is a range to search in: add hydra/sweep"):
        prepare_search(OmegaConf.create({"hydra": hydra}))
