"""Tests of sweeps: a failed job is named while the others run, and the next start runs only the missing jobs."""

import gc
import json
import logging
import os
import re
import signal
import sys
import threading
from unittest import mock

import pytest
from hydra.errors import CompactHydraException
from omegaconf import OmegaConf

from eblvm_lit.cli.commands import outcome_of
from eblvm_lit.cli.sweeps import Sweep
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.base import Method
from eblvm_lit.reports.runs import read_runs
from eblvm_lit.runs import run
from eblvm_lit.runs.resume import find_checkpoint, finished_job
from eblvm_lit.utils import command_line
from eblvm_lit.utils.run_files import read_command
from helpers.launching import run_script
from helpers.shell import checkpoint, curves, same_state, tiny, train

DSM = ("method=dsm", "trainer.max_steps=12", "n_validations=3")
RESUME = "sweep.resume=true"


# --- one job ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Run a job to its end, and return its folder and its metrics."""
    folder = tmp_path_factory.mktemp("whole") / "0"
    return folder, train(folder, *DSM)


def test_a_finished_job_is_skipped_and_gives_its_metrics(whole, monkeypatch):
    folder, metrics = whole
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    # without sweep.resume=true, neither a finished job nor a checkpoint is looked for
    assert finished_job(tiny(folder, *DSM)) is find_checkpoint(tiny(folder, *DSM)) is None
    monkeypatch.setattr(run, "build", lambda *_: pytest.fail("it was run again"))
    free = ("show_config=false", "threads=1", "callbacks.checkpoints.keep=2", "cache_dir=elsewhere", "tf32=true")
    assert train(folder, *DSM, RESUME, *free) == metrics
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    with pytest.raises(SystemExit, match="has results of other settings"):
        finished_job(tiny(folder, *DSM, "seed=2", RESUME))


def test_a_broken_job_resumes_from_its_last_checkpoint_and_ends_like_an_uninterrupted_one(whole, tmp_path, monkeypatch):
    step = Method.training_step

    def step_or_crash(self, v, i):
        if self.iterations_done == 10:
            raise RuntimeError("crashed on purpose")
        return step(self, v, i)

    monkeypatch.setattr(Method, "training_step", step_or_crash)
    folder = tmp_path / "0"
    same = f"outputs_dir={whole[0].parent}"
    with pytest.raises(RuntimeError):
        train(folder, *DSM, same)
    monkeypatch.undo()
    assert checkpoint(folder)["global_step"] == 8
    train(folder, *DSM, RESUME, same)
    assert same_state(folder, whole[0])
    assert curves(folder) == curves(whole[0])


@pytest.mark.skipif(sys.platform != "linux", reason="it reads Linux's /proc")
def test_a_job_leaves_no_file_thread_handler_or_logger_open(whole, tmp_path):
    def held():
        gc.collect()
        loggers = {name: logging.getLogger(name) for name in logging.root.manager.loggerDict}
        handlers = [handler for logger in (logging.root, *loggers.values()) for handler in logger.handlers]
        return {*os.listdir("/proc/self/fd"), *threading.enumerate(), *handlers, *loggers}

    before = held()
    train(tmp_path, *DSM)
    assert held() <= before


@pytest.mark.parametrize(
    ("error", "told", "alone"),
    [(ConfigError("No."), CompactHydraException, SystemExit), (RuntimeError("a bug"), RuntimeError, RuntimeError)],
)
def test_a_failed_job_of_a_grid_gives_none_and_one_of_a_search_raises(error, told, alone, monkeypatch):
    fail = mock.Mock(side_effect=error)
    cfg = OmegaConf.create({"sweep": {"resume": False}, "optimized_metric": "test/fisher"})

    def value_of(function):
        with outcome_of(cfg) as outcome:
            outcome.metrics = function(cfg)
        return outcome.value

    with pytest.raises(alone):
        value_of(fail)
    monkeypatch.setattr(command_line, "in_sweep", lambda: True)
    with pytest.raises(told):
        value_of(fail)
    assert value_of(lambda cfg: {"test/fisher": -3.0}) == -3.0
    cfg.optimized_metric = None
    assert value_of(fail) is None


# --- which sweep is resumed, and the table at the end of a sweep ------------------------------------------


def sweep_config(folder, *task, explicit=(), sweeper=None, metric=None):
    """Return a configuration with the part of Hydra's configuration that describes a sweep."""
    overrides = {"task": list(task), "hydra": ["hydra.mode=MULTIRUN", *explicit]}
    hydra = {"overrides": overrides, "sweep": {"dir": str(folder)}, "sweeper": sweeper or {}, "job": {"name": "train"}}
    return OmegaConf.create({"hydra": hydra, "sweep": {"resume": RESUME in task}, "optimized_metric": metric})


def stored_sweep(folder, *task):
    folder.mkdir(parents=True)
    OmegaConf.save(sweep_config(folder, *task), folder / "multirun.yaml")
    return folder


def test_the_newest_sweep_of_the_same_command_line_is_resumed(tmp_path):
    stored_sweep(tmp_path / "2026-01-01" / "23-00-00", "method=dsm", "seed=0,1")
    newest = stored_sweep(tmp_path / "2026-01-02" / "09-00-00", "method=dsm", RESUME, "seed=0,1")
    # This sweep is newer, but its overrides have another order, so that its jobs may have other numbers.
    stored_sweep(tmp_path / "2026-01-02" / "10-00-00", "seed=0,1", "method=dsm")
    config = sweep_config(tmp_path / "2026-01-03" / "09-00-00", "method=dsm", "seed=0,1", RESUME)
    Sweep().on_multirun_start(config)
    assert config.hydra.sweep.dir == str(newest)
    # Hydra composes the jobs from these overrides, so that the folder must also be among them.
    assert config.hydra.overrides.hydra[-1] == f"hydra.sweep.dir='{newest}'"


def test_a_sweep_that_cannot_be_found_is_a_sentence_and_a_named_one_is_taken(tmp_path):
    own = tmp_path / "2026-01-03" / "09-00-00"
    with pytest.raises(SystemExit, match=r"^ERROR: sweep.resume=true: .* has no sweep of this command line"):
        Sweep().on_multirun_start(sweep_config(own, "seed=0,1", RESUME))
    Sweep().on_multirun_start(sweep_config(own, "seed=0,1", RESUME, explicit=[f"hydra.sweep.dir={own}"]))
    stored_sweep(own, "seed=0,1")
    with pytest.raises(SystemExit, match="has no sweep of this command line"):
        Sweep().on_multirun_start(sweep_config(own, "seed=0,1,2", RESUME, explicit=[f"hydra.sweep.dir={own}"]))


def test_a_sweep_ends_with_a_table_of_its_jobs_and_the_reasons_of_failed_ones(tmp_path, capsys):
    for job in (0, 1, 10):
        (tmp_path / str(job)).mkdir()
        OmegaConf.save({"overrides": ["method=dsm", f"seed={job}"]}, tmp_path / str(job) / "command.yaml")
    metrics = {"test/fisher": -1.5, "test/log_z": 3.0, "val/loss": 0.25, "iteration": 9}
    (tmp_path / "0" / "metrics.json").write_text(json.dumps(metrics))
    (tmp_path / "10" / "train.log").write_text("[time][eblvm_lit.cli.commands][ERROR] The loss is nan.\n")
    with pytest.raises(SystemExit, match=r"2 of 3 jobs [^$]* job 1: [^$]* job 10: The loss is nan."):
        Sweep().on_multirun_end(sweep_config(tmp_path, "seed=0,1,10", metric="val/loss"))
    header, _, *rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert header == ["job", "settings", "val/loss", "test/fisher"]
    assert rows[:3] == [["0", "seed=0", "0.25", "-1.5"], ["1", "seed=1"], ["10", "seed=10"]]


# --- a whole sweep ----------------------------------------------------------------------------------------

KILL = (
    *("allow_packages=[helpers]", "+callbacks.kill._target_=helpers.stopping.KillAt"),
    *("+callbacks.kill.iteration=10", "+callbacks.kill.flag=killed_${seed}"),
)
# Job 0 finishes, and job 1 is killed.
SWEEP = ("-m", "debug=fast", "data=line_blobs", *DSM, *KILL, "callbacks.figures=null", "seed=0,1")


def test_the_same_command_with_sweep_resume_does_what_is_missing_and_no_more(tmp_path):
    (tmp_path / "killed_0").touch()  # this file tells the callback that it has killed job 0 already
    code, said = run_script("train.py", *SWEEP, folder=tmp_path)
    assert code == -signal.SIGKILL, said
    (folder,) = tmp_path.glob("multirun/*/*")
    finished, left_out = read_runs([folder])
    assert [run.folder.name for run in finished] == ["0"]
    assert [path.name for path in left_out] == ["1"]
    names = ("metrics.json", "metrics.csv", "config.yaml", "checkpoints/last.ckpt", "command.yaml", "train.log")
    files = [folder / "0" / name for name in names]
    before = [path.stat().st_mtime_ns for path in files]
    assert (checkpoint(folder / "1")["global_step"], len(curves(folder / "1"))) == (8, 8)
    code, said = run_script("train.py", *SWEEP, RESUME, folder=tmp_path)
    assert code == 0, said
    assert list(tmp_path.glob("multirun/*/*")) == [folder]
    assert [path.stat().st_mtime_ns for path in files] == before
    assert {"seed=1", "sweep.resume=True"} <= {*read_command(folder / "1")["overrides"]}
    assert re.search(r"(?m)^ *1 +seed=1 +-?\d", said), "the table has what the job is, not how it was started"
    assert f"{folder / '0'} has already finished" in said
    assert f"Resuming from iteration 8 of {folder / '1'}" in said
    assert checkpoint(folder / "1")["global_step"] == len(curves(folder / "1")) == 12


# --- a search with Optuna ---------------------------------------------------------------------------------


def test_the_direction_of_a_search_follows_from_its_metric_and_the_command_line_beats_it(tmp_path):
    told = ["hydra.sweeper.direction=maximize"]
    for metric, explicit, way in (("val/log_likelihood", [], "maximize"), ("val/own", told, "minimize")):
        config = sweep_config(tmp_path, metric=metric, explicit=explicit, sweeper={"direction": "minimize"})
        Sweep().on_multirun_start(config)
        assert config.hydra.sweeper.direction == way
    with pytest.raises(SystemExit, match="optimized_metric"):
        Sweep().on_multirun_start(sweep_config(tmp_path, metric="val/own", sweeper={"direction": "minimize"}))


def test_a_seed_that_all_processes_of_one_search_would_share_is_refused(tmp_path):
    shared = {"direction": "minimize", "storage": "sqlite:///search.db", "sampler": {"seed": None}}
    Sweep().on_multirun_start(sweep_config(tmp_path, metric="val/loss", sweeper=shared))
    for sweeper in ({**shared, "storage": None, "sampler": {"seed": 0}}, {**shared, "sampler": {}}):
        Sweep().on_multirun_start(sweep_config(tmp_path, metric="val/loss", sweeper=sweeper))
    with pytest.raises(SystemExit, match=r"same points.*leave the seed out"):
        Sweep().on_multirun_start(sweep_config(tmp_path, metric="val/loss", sweeper={**shared, "sampler": {"seed": 0}}))


@pytest.mark.slow
def test_two_processes_that_share_a_search_propose_different_points(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="needs pip install -e '.[optuna]'")
    search = ("-m", "hydra/sweeper=optuna", "debug=fast", "data=line_blobs", *DSM, "callbacks.figures=null")
    shared = (f"hydra.sweeper.storage=sqlite:///{tmp_path}/search.db", "hydra.sweeper.study_name=lr")
    tried = ("optimizer.lr=tag(log,interval(1e-4,1e-1))", "hydra.sweeper.n_trials=3", "optimized_metric=val/loss")
    # Both searches propose points at random, because Optuna's TPE learns only after more trials.
    for name in ("one", "other"):
        place = f"hydra.sweep.dir={tmp_path / name}"
        code, told = run_script("train.py", *search, *shared, *tried, place, folder=tmp_path)
        assert code == 0, told
    files = [*tmp_path.glob("*/?/config.yaml")]
    assert len({OmegaConf.load(file).optimizer.lr for file in files}) == len(files) == 6


@pytest.mark.slow
def test_optuna_finds_the_best_and_a_job_that_diverges_does_not_end_it(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="needs pip install -e '.[optuna]'")
    search = ("-m", "hydra/sweeper=optuna", "debug=fast", "data=line_blobs", *DSM, "callbacks.figures=null")
    tried = ("optimizer.lr=choice(0.01,1e30)", "hydra.sweeper.sampler.seed=0", "hydra.sweeper.n_trials=2")
    code, told = run_script("train.py", *search, *tried, "optimized_metric=val/loss", folder=tmp_path)
    assert code == 0, told
    (folder,) = tmp_path.glob("multirun/*/*")
    rates = [OmegaConf.load(folder / str(job) / "config.yaml").optimizer.lr for job in range(2)]
    assert set(rates) == {0.01, 1e30}, "the sampler's seed decides which are tried"
    losses = [json.loads(path.read_text())["val/loss"] for path in folder.glob("*/metrics.json")]
    found = OmegaConf.load(folder / "optimization_results.yaml")
    assert (found.best_params["optimizer.lr"], found.best_value) == (0.01, min(losses))
    assert f"WARNING: {rates.count(1e30)} of 2 jobs in " in told
