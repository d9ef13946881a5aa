"""Tests of whole runs in several processes: what they write, how they stop and how they are resumed."""

import ctypes
import signal
import sys
import time
from types import SimpleNamespace

import pytest
import torch.multiprocessing as mp

import eblvm_lit
from eblvm_lit.errors import ConfigError
from eblvm_lit.runs import run
from eblvm_lit.training import processes
from helpers.launching import RUN, Launch, gone, run_script
from helpers.processes import in_processes
from helpers.shell import TINY, checkpoint, close, curves, same_state, start, train

forking = pytest.mark.skipif("fork" not in mp.get_all_start_methods(), reason="processes begin where this one is")

PCD = ("method=pcd", "method.n_chains=30")


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Train an uninterrupted run in two processes."""
    started = Launch(tmp_path_factory.mktemp("straight"), *PCD)
    assert started.wait() == 0, started.said
    return started.run


@forking
def test_a_run_that_lost_a_process_ends_and_resumes_bit_by_bit(straight, tmp_path):
    started = Launch(tmp_path, *PCD, pause=11)
    started.send(signal.SIGKILL, rank=1)
    assert started.wait() == 1
    assert "Process 1 of the run was lost (Signal 9 (SIGKILL)" in started.said
    assert gone(started.pid(0))
    assert checkpoint(started.run)["global_step"] == 8
    again = Launch(tmp_path, *PCD, "ckpt=last")
    assert again.wait() == 0, again.said
    assert same_state(again.run, straight)
    assert curves(again.run) == curves(straight)


@forking
def test_the_processes_end_when_the_agent_is_killed(tmp_path):
    started = Launch(tmp_path, *PCD, pause=11)
    started.send(signal.SIGKILL, rank=None)
    assert all(gone(started.pid(rank)) for rank in (0, 1))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems send nothing where a parent is gone")
@forking
def test_processes_that_wait_for_others_and_ignore_signals_end_when_the_agent_is_killed(tmp_path):
    """Kill the process that starts the others while these wait in a library call and ignore signals.

    They wait as at their first barrier, and ignore signals as under nohup.
    """

    def wait(*_):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while not all((tmp_path / f"pid_{rank}").exists() for rank in (0, 1)):
            time.sleep(0.02)
        (tmp_path / "paused").touch()
        ctypes.PyDLL(None).pause()

    started = Launch(tmp_path, *PCD, prepare=lambda: setattr(run, "choose_precision", wait))
    started.send(signal.SIGKILL, rank=None)
    assert all(gone(started.pid(rank)) for rank in (0, 1))


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow)]
)
@forking
def test_a_signal_stops_all_processes_at_one_iteration(number, code, straight, tmp_path):
    started = Launch(tmp_path, *PCD, pause=9)
    started.send(number, rank=None)
    assert started.wait() == code, started.said
    assert all(gone(started.pid(rank)) for rank in (0, 1))
    assert f"Stopped by {number.name}; resume with the same command and ckpt=" in started.said
    assert checkpoint(started.run)["global_step"] == 10
    train(started.run, *RUN, *PCD, "ckpt=last")  # the run is resumed on one device
    assert close(started.run, straight)


@pytest.mark.slow
@forking
def test_an_error_of_one_process_is_that_of_the_run(tmp_path):
    crash = ("allow_packages=[helpers]", "+callbacks.crash={_target_: helpers.stopping.CrashAt, iteration: 5}")
    started = Launch(tmp_path, *PCD, *crash)
    assert started.wait() == 1
    assert "crashed on purpose" in started.said


@pytest.mark.slow
def test_the_command_line_starts_the_processes_itself(straight, tmp_path):
    options = [*TINY, *RUN, *PCD, "trainer.devices=2", "hydra.run.dir=run"]
    process = start("train.py", *options, folder=tmp_path)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert out.count("18/18") == 1  # no line is printed twice
    assert same_state(tmp_path / "run", straight)
    assert curves(tmp_path / "run") == curves(straight)
    assert "18/18" in (tmp_path / "run" / "train.log").read_text()


@pytest.mark.slow
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


def test_torchrun_needs_a_folder_for_all_processes(monkeypatch):
    hydra = SimpleNamespace(overrides=SimpleNamespace(hydra=[], task=[]), mode=None)
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setattr(processes.HydraConfig, "initialized", lambda: True)
    monkeypatch.setattr(processes.HydraConfig, "get", lambda: hydra)
    with pytest.raises(ConfigError, match=r"give all of them one, such as hydra.run.dir=outputs/my_run"):
        processes.check_launch(2)
    hydra.overrides.hydra = ["hydra.run.dir=outputs/x"]
    processes.check_launch(2)


@forking
@pytest.mark.parametrize("options", [("data.batch_size=233",), ("data.batch_size=100", "+trainer.overfit_batches=2")])
def test_several_processes_train_with_a_last_minibatch_of_two_examples_and_with_repeated_minibatches(tmp_path, options):
    # With data.batch_size=233, an epoch of 1400 = 6 x 233 + 2 examples ends with a minibatch of two.
    options = (*PCD, *RUN, "trainer.max_steps=9", "callbacks.evaluation=null", *options)
    train(tmp_path / "one", *options)
    several = (*options, "trainer.devices=2")
    in_processes(2, tmp_path, lambda rank: train(tmp_path / "run", *several))
    assert close(tmp_path / "run", tmp_path / "one")


@pytest.mark.parametrize(
    "options",
    [
        ("method=bidsm", "data.batch_size=3"),
        ("method=pcd", "method.n_chains=3"),
        ("method=annealed_likelihood", "model=gaussian", "method.n_chains=3"),
    ],
)
def test_what_several_processes_cannot_share_is_refused_before_they_start(tmp_path, monkeypatch, options):
    monkeypatch.setattr(run, "run_in_processes", lambda *_: pytest.fail("the processes have started"))
    with pytest.raises(ConfigError, match=r"3 .*\((data.batch_size|method.n_chains)\) are too few for 2 devices"):
        train(tmp_path / "run", "trainer.accelerator=cpu", "trainer.devices=2", *options)


@forking
def test_what_several_processes_cannot_do_is_refused_by_all_of_them(tmp_path):
    few = ("trainer.accelerator=cpu", "trainer.devices=2", "method=pcd")

    def work(rank):
        for option in ("data.batch_size=3", "method.n_chains=3"):
            with pytest.raises(ConfigError, match="too few for 2 devices"):
                train(tmp_path / "run", *few, option)
        return rank

    assert in_processes(2, tmp_path, work) == [0, 1]
