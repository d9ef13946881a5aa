"""Sweeps: a failed job is named and the others run; what is missing, and nothing else, is done by the next start."""

import json
import logging
import os
import pickle
import signal
import sys
import warnings
from pathlib import Path

import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import CompactHydraException
from omegaconf import OmegaConf
from rich.console import Console

from eblvm_lit.cli import cli, run
from eblvm_lit.cli.sweeps.callback import Sweep, refuse_another_sweep
from eblvm_lit.cli.sweeps.folder import earlier_sweep
from eblvm_lit.cli.sweeps.jobs import earlier_checkpoint, earlier_metrics
from eblvm_lit.cli.sweeps.launcher import check_launcher
from eblvm_lit.errors import ConfigError, DataError
from eblvm_lit.methods.base import Method
from eblvm_lit.reports.runs import read_runs
from eblvm_lit.training.status import has_finished, read_status
from launching import run_script
from shell import CONF, checkpoint, configure, curves, same_state, start, tiny, train

DSM = ("method=dsm", "trainer.max_steps=12", "n_validations=3")
RESUME = "sweep.resume=true"


def begin_again(folder, *overrides):
    """A job of a sweep that goes on."""
    return train(folder, *DSM, *overrides, RESUME)


# --- what a run says of itself ----------------------------------------------------------------------------


def test_a_run_says_what_it_ran_on_and_that_it_has_finished(tmp_path):
    train(tmp_path, *DSM, "threads=1")
    status = read_status(tmp_path)
    assert (status["state"], status["threads"], "reason" in status) == ("finished", 1, False)
    assert 0 < status["seconds"] < 600
    assert {"started", "device", "host", "torch", "python", "commit"} <= status.keys()
    assert has_finished(tmp_path)


@pytest.mark.parametrize(
    ("overrides", "error", "reason"),
    [
        (["trainer.precision=16-mixed"], ConfigError, "trainer.precision=16-mixed is not supported"),
        (
            ["allow_packages=[stopping]", "+callbacks.c._target_=stopping.CrashAt", "+callbacks.c.iteration=6"],
            RuntimeError,
            "RuntimeError: crashed on purpose",
        ),
    ],
)
def test_a_failed_run_says_why_and_earlier_results_no_longer_count(overrides, error, reason, tmp_path):
    (tmp_path / "metrics.json").write_text('{"iteration": 1}')  # of an earlier start
    with pytest.raises(error):
        train(tmp_path, *DSM, *overrides)
    status = read_status(tmp_path)
    assert status["state"] == "failed"
    assert status["reason"].startswith(reason)
    assert not has_finished(tmp_path)


def test_a_run_that_was_told_to_stop_is_interrupted_and_not_failed(tmp_path, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "build", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, *DSM)
    assert read_status(tmp_path)["state"] == "interrupted"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"state": 3}', '"finished"'])
def test_a_damaged_status_is_named(text, tmp_path):
    (tmp_path / "status.json").write_text(text)
    with pytest.raises(DataError, match=r"status.json is damaged"):
        read_status(tmp_path)


# --- what is done again -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A job that has finished."""
    folder = tmp_path_factory.mktemp("whole") / "0"
    return folder, train(folder, *DSM)


def test_a_finished_job_is_skipped_and_gives_its_metrics(whole, monkeypatch):
    folder, metrics = whole
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    monkeypatch.setattr(run, "build", lambda cfg: pytest.fail("it was run again"))
    assert begin_again(folder, "show_config=false") == metrics
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_sweep_that_was_moved_is_still_finished(whole, tmp_path):
    folder, metrics = whole
    (tmp_path / "moved").mkdir()
    for name in ("metrics.json", "status.json", "config.yaml"):
        (tmp_path / "moved" / name).write_bytes((folder / name).read_bytes())
    cfg = tiny(tmp_path / "moved", *DSM, RESUME, f"outputs_dir={folder.parent}")
    assert earlier_metrics(cfg) == metrics


@pytest.mark.parametrize("change", ["seed=2", "optimizer.lr=0.5", "trainer.max_steps=15", "callbacks.curves=null"])
def test_another_configuration_is_never_taken_for_finished_nor_gone_on_with(change, whole, caplog):
    cfg = tiny(whole[0], *DSM, change, RESUME)
    assert earlier_metrics(cfg) is None
    assert earlier_checkpoint(cfg) is None
    assert "of another configuration" in caplog.text


def test_without_being_asked_nothing_is_skipped(whole):
    cfg = tiny(whole[0], *DSM)
    assert earlier_metrics(cfg) is None
    assert earlier_checkpoint(cfg) is None


@pytest.mark.parametrize("state", ["running", "failed", "interrupted"])
def test_results_of_a_job_that_was_begun_again_since_do_not_count(state, whole, tmp_path):
    for name in ("metrics.json", "config.yaml"):
        (tmp_path / name).write_bytes((whole[0] / name).read_bytes())
    (tmp_path / "status.json").write_text(json.dumps({"state": state}))
    assert earlier_metrics(tiny(tmp_path, *DSM, RESUME, f"outputs_dir={whole[0].parent}")) is None


def test_a_broken_job_goes_on_from_its_last_checkpoint_and_ends_as_if_nothing_had_been(whole, tmp_path, monkeypatch):
    step = Method.training_step

    def step_or_crash(self, v, i):
        if self.iterations_done == 10:
            raise RuntimeError("crashed on purpose")
        return step(self, v, i)

    monkeypatch.setattr(Method, "training_step", step_or_crash)
    folder, same = tmp_path / "0", f"outputs_dir={whole[0].parent}"
    with pytest.raises(RuntimeError):
        train(folder, *DSM, same)
    monkeypatch.undo()
    assert (checkpoint(folder)["global_step"], has_finished(folder)) == (8, False)
    steps = []
    monkeypatch.setattr(
        Method, "training_step", lambda self, v, i: (steps.append(self.iterations_done), step(self, v, i))[1]
    )
    begin_again(folder, same)
    assert steps == [8, 9, 10, 11]
    assert has_finished(folder)
    assert same_state(folder, whole[0])
    assert curves(folder) == curves(whole[0])


def test_a_checkpoint_says_itself_what_it_is_of(whole, tmp_path):
    """A later start of another configuration may have got no further than config.yaml."""
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.ckpt").write_bytes((whole[0] / "checkpoints" / "last.ckpt").read_bytes())
    same = tiny(tmp_path, *DSM, RESUME, f"outputs_dir={whole[0].parent}")
    assert earlier_checkpoint(same) == tmp_path / "checkpoints" / "last.ckpt"
    other = tiny(tmp_path, *DSM, "optimizer.lr=0.5", RESUME, f"outputs_dir={whole[0].parent}")
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(other, resolve=True))
    assert earlier_checkpoint(other) is None
    (tmp_path / "checkpoints" / "last.ckpt").write_bytes(b"PK")
    assert earlier_checkpoint(same) is None


# --- where it goes on, and what is refused ----------------------------------------------------------------


def sweep_config(folder, *task, params=None, explicit=()):
    """What Hydra knows of a sweep."""
    overrides = {"task": list(task), "hydra": ["hydra.mode=MULTIRUN", *explicit]}
    sweep = {"dir": str(folder)}
    launcher = {"_target_": "hydra._internal.core_plugins.basic_launcher.BasicLauncher"}
    hydra = {"overrides": overrides, "sweep": sweep, "sweeper": {"params": params}, "launcher": launcher}
    return OmegaConf.create({"hydra": hydra, "sweep": {"resume": RESUME in task}})


def stored_sweep(folder, *task, params=None):
    folder.mkdir(parents=True)
    OmegaConf.save(sweep_config(folder, *task, params=params), folder / "multirun.yaml")
    return folder


def test_the_newest_sweep_of_the_same_settings_is_gone_on_with(tmp_path):
    stored_sweep(tmp_path / "2026-01-01" / "23-00-00", "method=dsm", "seed=0,1")
    newest = stored_sweep(tmp_path / "2026-01-02" / "09-00-00", "method=dsm", RESUME, "seed=0,1")
    stored_sweep(tmp_path / "2026-01-02" / "10-00-00", "seed=0,1", "method=dsm")  # jobs may have other numbers
    stored_sweep(tmp_path / "2026-01-02" / "11-00-00", "method=dsm", "seed=0,1,2")
    stored_sweep(tmp_path / "2026-01-02" / "12-00-00", "method=dsm", "seed=0,1", params={"data": "moons,circle"})
    (tmp_path / "2026-01-02" / "13-00-00").mkdir()
    (tmp_path / "2026-01-02" / "13-00-00" / "multirun.yaml").write_text("[1")
    config = sweep_config(tmp_path / "2026-01-03" / "09-00-00", "method=dsm", "seed=0,1", RESUME)
    assert earlier_sweep(config) == newest
    Sweep().on_multirun_start(config)
    assert config.hydra.sweep.dir == str(newest)
    assert config.hydra.overrides.hydra[-1] == f"hydra.sweep.dir='{newest}'"  # for the jobs, which are composed anew


def test_a_sweep_that_cannot_be_found_is_a_sentence_and_a_named_one_is_taken(tmp_path):
    own = tmp_path / "2026-01-03" / "09-00-00"
    with pytest.raises(ConfigError, match=r"^sweep.resume=true: no sweep with these settings, in this order"):
        earlier_sweep(sweep_config(own, "seed=0,1", RESUME))
    with pytest.raises(SystemExit) as leave:
        Sweep().on_multirun_start(sweep_config(own, "seed=0,1", RESUME))
    assert leave.value.code.startswith("ERROR: sweep.resume=true")
    assert earlier_sweep(sweep_config(own, "seed=0,1", RESUME, explicit=[f"hydra.sweep.dir={own}"])) == own


def test_jobs_do_not_take_the_numbers_of_an_earlier_sweep(tmp_path):
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "config.yaml").touch()
    sweep = {"dir": str(tmp_path), "subdir": "${hydra.job.num}"}
    for subdir, resume in (("${hydra.job.num}", True), ("seed_3", False)):
        cfg = OmegaConf.create({"hydra": {"sweep": {**sweep, "subdir": subdir}}, "sweep": {"resume": resume}})
        refuse_another_sweep(cfg, tmp_path)
    cfg = OmegaConf.create({"hydra": {"sweep": sweep}, "sweep": {"resume": False}})
    with pytest.raises(ConfigError, match=r"holds a sweep already: continue it with sweep.resume=true, or choose"):
        refuse_another_sweep(cfg, tmp_path)


def test_only_jobs_of_this_start_are_named_at_its_end(tmp_path):
    for job, state in enumerate(("failed", "finished")):
        write_status(tmp_path / str(job), state)
    sweep, config = Sweep(), sweep_config(tmp_path, "seed=0,1")
    sweep.on_multirun_start(config)
    write_status(tmp_path / "2", "finished")
    sweep.on_multirun_end(config)  # job 0 failed before
    write_status(tmp_path / "3", "running")
    write_status(tmp_path / "10", "failed", reason="The loss is nan.")
    with pytest.raises(SystemExit) as leave:
        sweep.on_multirun_end(config)
    assert leave.value.code.splitlines() == [
        f"ERROR: 2 of 5 jobs in {tmp_path} have not finished:",
        "  job 3: running.",
        "  job 10: failed. The loss is nan.",
    ]


def test_a_sweep_ends_with_a_table_of_its_jobs(tmp_path, capsys):
    for job in (0, 1, 10):
        write_status(tmp_path / str(job), "finished" if job < 10 else "failed")
        OmegaConf.save(["method=dsm", f"seed={job}"], tmp_path / str(job) / "overrides.yaml")
        (tmp_path / str(job) / ".hydra").mkdir()
        (tmp_path / str(job) / "overrides.yaml").rename(tmp_path / str(job) / ".hydra" / "overrides.yaml")
        metrics = {"test/fisher": -1.5 - job, "test/log_z": 3.0, "val/loss": 0.25, "iteration": 9}
        (tmp_path / str(job) / "metrics.json").write_text(json.dumps(metrics))
    (tmp_path / "1" / "metrics.json").write_text("{")  # a damaged one does not end the others
    sweep, config = Sweep(), sweep_config(tmp_path, "seed=0,1,10")
    config.optimized_metric = "val/loss"
    sweep._before = {path: path.stat().st_mtime_ns for path in [tmp_path / str(job) for job in (0, 1, 10)]}
    with pytest.raises(SystemExit) as leave:
        sweep.on_multirun_end(config)
    assert "1 of 3 jobs" in leave.value.code
    header, units, _, *rows, blank, compare, command = [
        line.split() for line in capsys.readouterr().out.rstrip().splitlines()
    ]
    assert [*header, *units] == ["val/", "test/", "job", "settings", "state", "loss", "fisher"]
    assert rows == [
        ["0", "seed=0", "finished", "0.25", "-1.5"],
        ["1", "seed=1", "damaged"],
        ["10", "seed=10", "failed"],
    ]
    assert (blank, compare[0]) == ([], "Compare")
    assert command == ["python", "-m", "eblvm_lit.reports", str(tmp_path)]


def test_a_worker_of_joblib_prints_lines_and_no_notice_of_hydra(monkeypatch):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pickle.loads(pickle.dumps(Sweep()))  # what reaches a worker before it composes its job
        assert not Console().is_terminal
        warnings.warn("\n'hydra/launcher/joblib' is validated against ConfigStore schema", stacklevel=1)
        warnings.warn("another one", stacklevel=1)
    assert [str(warning.message) for warning in caught] == ["another one"]


@pytest.mark.slow
def test_jobs_side_by_side_print_no_bars_and_no_notice(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="needs the launcher of joblib")
    jobs = ["debug=fast", "data=line_blobs", *DSM, "callbacks.figures=null", "compile=false", "seed=0,1", "threads=1"]
    process = start("train.py", "-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", *jobs, folder=tmp_path)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "ConfigStore" not in err
    assert "━━━━━━" not in err
    (command,) = (line for line in out.splitlines() if "eblvm_lit.reports multirun/" in line)
    assert (tmp_path / command.split()[-1] / "1" / "metrics.json").is_file()


def write_status(folder, state, **more):
    folder.mkdir()
    (folder / "status.json").write_text(json.dumps({"state": state, **more}))


def test_a_launcher_that_is_not_installed_is_a_sentence():
    target = OmegaConf.load(CONF / "hydra" / "launcher" / "joblib.yaml")._target_
    with pytest.raises(
        ConfigError, match="hydra/launcher=nowhere is not installed: pip install hydra-nowhere-launcher"
    ):
        check_launcher(target.replace("joblib", "nowhere"))


def test_naming_a_launcher_that_is_installed_warns_of_nothing(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="needs the launcher of joblib")
    process = start("train.py", "hydra/launcher=joblib", "--cfg", "job", folder=tmp_path)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    assert out.startswith("seed: ")


@pytest.mark.parametrize("asked", [None, "test/fisher"])
@pytest.mark.parametrize("error", [ConfigError("It cannot work."), RuntimeError("a bug")])
def test_a_failed_job_of_a_grid_returns_and_a_sweeper_that_reads_values_is_told(asked, error, monkeypatch):
    def fail(cfg):
        raise error

    cfg = OmegaConf.create({"sweep": {"resume": False}, "optimized_metric": asked})
    monkeypatch.setattr(cli, "in_sweep", lambda: True)
    if asked is None:
        assert cli.main(fail, cfg) is None
    else:
        with pytest.raises(CompactHydraException if isinstance(error, ConfigError) else RuntimeError):
            cli.main(fail, cfg)
    monkeypatch.setattr(cli, "in_sweep", lambda: False)
    with pytest.raises(SystemExit if isinstance(error, ConfigError) else RuntimeError):
        cli.main(fail, cfg)


# --- a whole sweep ----------------------------------------------------------------------------------------

KILL = (
    *("allow_packages=[stopping]", "+callbacks.kill._target_=stopping.KillAt"),
    *("+callbacks.kill.iteration=10", "+callbacks.kill.flag=killed_${seed}"),
)
# Job 0 ends, 1 is killed, 2 is never begun, and cannot work.
SWEEP = ("-m", "debug=fast", "data=line_blobs", *DSM, *KILL, "callbacks.figures=null", "seed=0,1,-1")


def hydra_main(folder, monkeypatch, *args):
    """What train.py does, in this process; its exit code and the sentence it ends with."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["train.py", *args])
    root, handlers, level = logging.getLogger(), logging.getLogger().handlers[:], logging.getLogger().level
    try:
        command = hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
        command(lambda cfg: cli.main(run.train, cfg))()
        return 0, ""
    except SystemExit as leave:
        return 1, leave.code
    finally:
        GlobalHydra.instance().clear()
        root.handlers[:] = handlers
        root.setLevel(level)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The sweep above in a process of its own, killed in its second job."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "killed_0").touch()  # this one is not
    code, said = run_script("train.py", *SWEEP, folder=folder)
    assert code == -signal.SIGKILL, said
    (multirun,) = folder.glob("multirun/*/*")
    return multirun


def test_the_report_counts_nothing_as_finished_that_is_not(killed):
    finished, (job,) = read_runs([killed])
    assert [run.folder.name for run in finished] == ["0"]
    assert (job.folder.name, job.state) == ("1", "unfinished")
    assert job.reason == "It was killed, or is still running."
    assert "seed=1" in job.overrides


def test_the_same_command_with_sweep_resume_does_what_is_missing_and_no_more(killed, monkeypatch, tmp_path, capsys):
    files = [path for path in (killed / "0").rglob("*.*") if ".hydra" not in path.parts]
    before = {path: path.stat().st_mtime_ns for path in files if path.suffix != ".log"}  # the log gets a line
    assert (checkpoint(killed / "1")["global_step"], len(curves(killed / "1"))) == (8, 8)
    code, sentence = hydra_main(killed.parents[2], monkeypatch, *SWEEP, RESUME)
    assert code == 1  # job 2 cannot work
    assert "1 of 3 jobs" in sentence
    assert "job 2: failed. seed must be an integer" in sentence
    assert len(list(killed.parent.iterdir())) == 1  # it went on where it was
    assert {path: path.stat().st_mtime_ns for path in before} == before
    told = capsys.readouterr().err
    assert f"{killed / '0'} has finished before" in told
    assert f"Resuming from iteration 8 of {killed / '1'}" in told
    assert [has_finished(killed / str(job)) for job in range(3)] == [True, True, False]
    alone = ["debug=fast", "data=line_blobs", *DSM, "callbacks.figures=null", "seed=1"]
    run.train(configure(*alone, f"run_dir={tmp_path}"))
    assert same_parameters(killed / "1", tmp_path)
    assert curves(killed / "1") == curves(tmp_path)


def same_parameters(one, other):
    a, b = checkpoint(one)["state_dict"], checkpoint(other)["state_dict"]
    return a.keys() == b.keys() and all(a[name].equal(b[name]) for name in a)


# --- many jobs --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="it reads Linux's /proc")
def test_two_hundred_jobs_in_one_process_leak_neither_memory_nor_files_nor_threads_nor_loggers(tmp_path):
    tiny_jobs = ["debug=fast", "data=line_blobs", "method=dsm", "trainer.max_steps=5", "n_validations=1"]
    meter = ["+hydra.callbacks.meter._target_=leaks.Meter", f"+hydra.callbacks.meter.path={tmp_path / 'held.jsonl'}"]
    n = int(os.environ.get("EBLVM_LEAK_JOBS", "200"))
    jobs = [*tiny_jobs, "callbacks.figures=null", f"seed=range(0,{n})"]
    process = start("train.py", "-m", *jobs, *meter, folder=tmp_path)
    err = process.communicate(timeout=3600)[1]
    assert process.returncode == 0, err
    held = [json.loads(line) for line in (tmp_path / "held.jsonl").read_text().splitlines()]
    assert len(held) == n
    early, late = held[n // 10 - 1], held[-1]
    assert all(late[name] <= early[name] for name in ("files", "threads", "handlers", "loggers"))
    assert late["memory"] < early["memory"] + 0.1 * (n - n // 10)  # MiB: a hundred KiB a job would be a leak
