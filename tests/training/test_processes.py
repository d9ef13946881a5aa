"""Whole runs in several processes: what they leave, how they stop and how they go on."""

import contextlib
import os
import random
import re
import signal
import time

import pytest
import torch.multiprocessing as mp

import eblvm_lit
from eblvm_lit.errors import ConfigError
from eblvm_lit.training import processes
from eblvm_lit.training.checkpoint_io import load_checkpoint
from eblvm_lit.training.loggers.csv import read_curves
from helpers.launching import RUN, Launch, gone, run_script
from helpers.processes import in_processes
from helpers.shell import TINY, checkpoint, close, curves, same_state, start, train

forking = pytest.mark.skipif("fork" not in mp.get_all_start_methods(), reason="processes begin where this one is")

PCD = ("method=pcd", "method.n_chains=30")


# --- stopping ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """An uninterrupted run in two processes."""
    started = Launch(tmp_path_factory.mktemp("straight"), *PCD)
    assert started.wait() == 0, started.said
    return started.run


def resumes(folder, straight):
    """Whether a stopped run ends as the uninterrupted one, bit by bit."""
    again = Launch(folder, *PCD, "ckpt=last")
    return again.wait() == 0 and same_state(again.run, straight) and curves(again.run) == curves(straight)


@forking
def test_a_lost_process_ends_the_run_and_it_resumes_bit_by_bit(straight, tmp_path):
    started = Launch(tmp_path, *PCD, pause=11)
    started.send(signal.SIGKILL, rank=1)
    assert started.wait() == 1
    assert "Process 1 of the run was lost (Signal 9 (SIGKILL)" in started.said
    assert gone(started.pid(0))
    assert checkpoint(started.run)["global_step"] == 8
    assert resumes(tmp_path, straight)


@forking
def test_the_processes_end_where_the_agent_is_killed_and_one_device_can_resume(straight, tmp_path):
    started = Launch(tmp_path, *PCD, pause=11)
    started.send(signal.SIGKILL, rank=None)
    assert all(gone(started.pid(rank)) for rank in (0, 1))
    train(started.run, *RUN, *PCD, "ckpt=last")  # with one device
    assert close(started.run, straight)


@forking
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), (signal.SIGINT, 130), pytest.param(signal.SIGUSR1, 138, marks=pytest.mark.slow)],
)
def test_a_signal_stops_all_processes_at_one_iteration(number, code, straight, tmp_path):
    started = Launch(tmp_path, *PCD, pause=9)
    started.send(number, rank=None)
    assert started.wait() == code, started.said
    assert all(gone(started.pid(rank)) for rank in (0, 1))
    assert f"Stopped by {number.name}; resume with the same command and ckpt=" in started.said
    assert checkpoint(started.run)["global_step"] == 10
    assert resumes(tmp_path, straight)


@forking
def test_an_error_of_one_process_is_that_of_the_run(tmp_path):
    crash = ("allow_packages=[helpers]", "+callbacks.crash={_target_: helpers.stopping.CrashAt, iteration: 5}")
    started = Launch(tmp_path, *PCD, *crash)
    assert started.wait() == 99
    assert "crashed on purpose" in started.said


# --- started in three ways --------------------------------------------------------------------------------


def test_the_command_line_starts_the_processes_itself(straight, tmp_path):
    options = [*TINY, *RUN, *PCD, "trainer.devices=2", "hydra.run.dir=run"]
    process = start("train.py", *options, folder=tmp_path)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert out.count("18/18") == 1  # nothing is said twice
    assert same_state(tmp_path / "run", straight)
    assert curves(tmp_path / "run") == curves(straight)
    assert sorted(path.name for path in (tmp_path / "run").iterdir() if path.name != ".hydra") == [
        *("checkpoints", "config.yaml", "metrics.csv", "metrics.json", "train.log"),
    ]
    assert "18/18" in (tmp_path / "run" / "train.log").read_text()


@forking
def test_a_sweep_starts_the_processes_of_each_job(straight, tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "START_METHOD", "fork")
    options = [*TINY, *RUN, *PCD, "trainer.devices=2", "hydra.sweep.dir=sweep", "seed=7,1234"]
    code, said = run_script("train.py", "-m", *options, folder=tmp_path)
    assert code == 0, said
    assert close(tmp_path / "sweep" / "1", straight)
    assert not close(tmp_path / "sweep" / "0", straight)


@forking
def test_a_call_from_python_starts_the_processes(straight, tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "START_METHOD", "fork")
    handler = signal.getsignal(signal.SIGINT)
    options = [*TINY, *RUN, *PCD, "trainer.devices=2", f"run_dir={tmp_path / 'run'}", f"outputs_dir={tmp_path}"]
    found = eblvm_lit.train(options)
    assert found.iteration == 18
    assert close(tmp_path / "run", straight)
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.slow
@forking
def test_twenty_kills_at_any_moment_lose_nothing(straight, tmp_path):
    chance = random.Random(0)
    for i in range(20):
        at, rank = chance.randrange(3, 18, 2), chance.choice([0, 1, None])  # where blocks of two begin
        number = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
        started = Launch(tmp_path / str(i), *PCD, pause=at)
        started.wait_for_pause()
        (started.folder / "go").touch()
        time.sleep(chance.uniform(0, 0.2))
        with contextlib.suppress(ProcessLookupError):  # it may be over
            if started.first.poll() is None:
                os.kill(started.pid(rank), number)
        started.wait()
        assert all(gone(started.pid(rank)) for rank in (0, 1))
        last = started.run / "checkpoints" / "last.ckpt"
        if last.exists():
            assert load_checkpoint(last)["global_step"] >= (at - 1) // 4 * 4
            for path in (started.run / "checkpoints").glob("*.ckpt"):
                load_checkpoint(path)
            read_curves(started.run / "metrics.csv")
        else:
            assert at <= 4
        again = Launch(tmp_path / str(i), *PCD, *(["ckpt=last"] if last.exists() else []))
        assert again.wait() == 0
        assert same_state(again.run, straight), (i, at, rank, number)
        assert curves(again.run) == curves(straight)


# --- refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["trainer.num_nodes=2"], "which torchrun or srun start: see docs/runs.md"),
        (["+trainer.strategy=fsdp"], "trainer.strategy is not taken: use trainer.devices"),
    ],
)
def test_what_cannot_be_launched_is_refused_in_one_sentence(overrides, sentence, tmp_path):
    with pytest.raises(ConfigError, match=sentence) as refusal:
        train(tmp_path / "run", "trainer.accelerator=cpu", *overrides)
    assert "\n" not in str(refusal.value)


def test_torchrun_needs_a_folder_for_all_processes(monkeypatch):
    class Hydra:
        class overrides:  # noqa: N801
            hydra, task = [], []

        mode = None

    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setattr(processes.HydraConfig, "initialized", lambda: True)
    monkeypatch.setattr(processes.HydraConfig, "get", lambda: Hydra)
    with pytest.raises(ConfigError, match=r"give all of them one, such as hydra.run.dir=outputs/my_run"):
        processes.check_launch(2)
    Hydra.overrides.hydra = ["hydra.run.dir=outputs/x"]
    processes.check_launch(2)


REFUSED = {
    "small": (["data.batch_size=3"], "are too few for 2 devices, each of which needs two"),
    "chains": (["method=pcd", "method.n_chains=3"], "3 persistent chains .* are too few for 2 devices"),
}


@forking
def test_what_several_processes_cannot_do_is_refused_by_all_of_them(tmp_path):
    def work(rank):
        found = {}
        for name, (overrides, _) in REFUSED.items():
            with pytest.raises(ConfigError) as refusal:
                train(tmp_path / name, "trainer.accelerator=cpu", "trainer.devices=2", "method=dsm", *overrides)
            found[name] = str(refusal.value)
        return found

    for found in in_processes(2, tmp_path, work):
        for name, (_, sentence) in REFUSED.items():
            assert re.search(sentence, found[name])
