"""Signals at every phase of a run: its exit code, its status, its checkpoints, and what is left of its processes."""

import logging
import os
import pty
import re
import signal
import sys
import time

import pytest
import torch.multiprocessing as mp

from eblvm_lit.cli import cli, run
from eblvm_lit.core import compile_choice, fast_paths
from eblvm_lit.core.compile_choice import Choice
from eblvm_lit.training.callbacks.preemption import InterruptedRunError
from eblvm_lit.training.status import read_status
from eblvm_lit.utils.interrupts import Interruption, exit_on_interrupt, hold, raise_interrupts
from eblvm_lit.utils.locks import FolderLock
from launching import RUN, Forked, Launch, gone
from phases import BURST, PHASES, SIGNALS, send_in
from shell import ROOT, checkpoint, curves, same_state, start, tiny, train
from test_sweeps import hydra_main

pytestmark = pytest.mark.skipif("fork" not in mp.get_all_start_methods(), reason="processes begin where this one is")

DSM = ("method=dsm",)
# Where the last checkpoint is, by the phase in which a signal comes; None where there is none.
SAVED = {
    "before training": None,
    "start of training": None,
    "first iteration": 2,
    "training": 10,
    "checkpoint": 4,
    "validation": 12,
    "final evaluation": 18,
}
SAVED_ALONE = {**SAVED, "first iteration": 1, "training": 9}  # a single process ends its block of two iterations early
KILLED = {**SAVED, "first iteration": None, "training": 8, "checkpoint": None, "validation": 8}


def leftovers(folder):
    """Files that no run should leave."""
    return [path.name for path in folder.rglob("*") if path.name == ".lock" or path.name.endswith(".tmp")]


def stop(folder, phase, name, n, rank=0):
    """Send a signal to a process of a run, and check what it leaves."""
    started = Launch(folder, *DSM, n=n, prepare=lambda: send_in(phase, name, rank))
    code = started.wait()
    if n > 1 and (started.folder / "pid_1").exists():
        assert gone(started.pid(1))
    status = read_status(started.run)
    saved = checkpoint(started.run)["global_step"] if (started.run / "checkpoints" / "last.ckpt").exists() else None
    if name == "SIGKILL":
        assert (code, status["state"]) == ((-9, "running") if rank == 0 else (1, "failed")), started.said
        assert saved == KILLED[phase]
        return started
    name = "SIGTERM" if name == BURST else name
    assert (code, status["state"]) == (128 + getattr(signal, name), "interrupted"), started.said
    assert re.search(f"topped by {name}", status["reason"])
    assert "Traceback" not in started.said
    assert saved == (SAVED_ALONE if n == 1 else SAVED)[phase]
    assert [path for path in leftovers(started.run) if path != ".lock"] == []
    with FolderLock(started.run):  # whatever a process that was ended at once has left
        pass
    return started


def resume(folder, *overrides):
    """Run it again in this process, in the same folder."""
    again = ("ckpt=last",) if (folder / "checkpoints" / "last.ckpt").exists() else ()
    train(folder, *RUN, *DSM, *again, *overrides)
    assert leftovers(folder) == []


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    train(folder, *RUN, *DSM)
    return folder


CELLS = [("before training", BURST), ("training", "SIGHUP"), ("checkpoint", BURST), ("final evaluation", BURST)]


@pytest.mark.parametrize(("phase", "name"), CELLS)
def test_a_signal_at_any_phase_is_recorded_and_loses_nothing(phase, name, straight, tmp_path):
    stopped = stop(tmp_path, phase, name, 1)
    resume(stopped.run)
    assert read_status(stopped.run)["state"] == "finished"
    assert same_state(stopped.run, straight)
    assert curves(stopped.run) == curves(straight)


@pytest.mark.parametrize(
    ("phase", "name", "rank"), [("start of training", "SIGTERM", 1), ("final evaluation", BURST, 0)]
)
def test_a_signal_to_one_of_two_processes_ends_both(phase, name, rank, tmp_path):
    stop(tmp_path, phase, name, 2, rank)


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("phase", PHASES)
def test_every_signal_at_every_phase(phase, name, n, straight, tmp_path):
    for rank in range(n):
        if phase == "checkpoint" and rank > 0:
            continue  # the first process alone writes
        if (phase, name, rank) == ("before training", "SIGKILL", 1):
            continue  # slower than the rest together: the first process waits for it to join
        stopped = stop(tmp_path / str(rank), phase, name, n, rank)
        if n == 1:
            resume(stopped.run)
            assert same_state(stopped.run, straight)
            assert curves(stopped.run) == curves(straight)


# --- sweeps -----------------------------------------------------------------------------------------------


def sweep(folder, phase, name, monkeypatch):
    """A sweep of two jobs in a process of its own, the first of which gets a signal; its code, and its folder."""
    jobs = ("-m", "debug=fast", "data=line_blobs", *RUN, "data.batch_size=100", *DSM, "callbacks.figures=null")

    def work():
        sys.stdout = sys.stderr = open(folder / "said", "w", buffering=1)  # noqa: SIM115 - to the end of the process
        exit_on_interrupt()
        send_in(phase, name)
        _, code = hydra_main(folder, monkeypatch, *jobs, "seed=0,1", "hydra.sweep.dir=sweep")
        logging.shutdown()
        os._exit(code if isinstance(code, int) else 99)

    process = Forked(work)
    process.wait(200)
    return process.returncode, folder / "sweep"


@pytest.mark.parametrize(
    ("phase", "name"),
    [
        ("training", "SIGTERM"),
        *(pytest.param(phase, name, marks=pytest.mark.slow) for phase in PHASES for name in SIGNALS),
    ],
)
def test_a_signal_ends_a_whole_sweep(phase, name, tmp_path, monkeypatch):
    code, folder = sweep(tmp_path, phase, name, monkeypatch)
    assert not (folder / "1").exists()
    state = read_status(folder / "0")["state"]
    if name == "SIGKILL":
        assert (code, state) == (-9, "running")
    else:
        assert (code, state) == (128 + (15 if name == BURST else getattr(signal, name)), "interrupted")
        assert "sweep.resume=true" in (tmp_path / "said").read_text()
        assert leftovers(folder / "0") == []


@pytest.mark.slow
def test_the_jobs_of_a_sweep_that_is_ended_save_and_end(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="needs the launcher of joblib")
    waiting = [
        "allow_packages=[stopping]",
        "+callbacks.pause._target_=stopping.PauseAt",
        "+callbacks.pause.iteration=5",
    ]
    side_by_side = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra.sweep.dir=sweep", "threads=1"]
    jobs = ["debug=fast", "data=line_blobs", *DSM, "callbacks.figures=null", "iterations_per_batch=1", "seed=0,1"]
    for job in "01":
        (tmp_path / job).mkdir()
    pause = [*waiting, f"+callbacks.pause.folder={tmp_path}/${{seed}}"]
    process = start("train.py", "-m", *side_by_side, *jobs, *pause, folder=tmp_path)
    deadline = time.monotonic() + 300
    while not all((tmp_path / job / "paused").exists() for job in "01"):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    folders = [tmp_path / "sweep" / job for job in "01"]
    workers = [int(re.search(r"\d+", (folder / ".lock").read_text())[0]) for folder in folders]
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    time.sleep(2)
    for job in "01":
        (tmp_path / job / "go").touch()
    assert all(gone(worker) for worker in workers)
    assert [read_status(folder)["state"] for folder in folders] == ["interrupted"] * 2
    assert [checkpoint(folder)["global_step"] for folder in folders] == [5, 5]


# --- what a signal does ---------------------------------------------------------------------------------------------


def test_a_burst_raises_once_and_the_end_of_a_write_is_waited_for():
    raised, written = [], []
    try:
        with raise_interrupts():
            try:
                with hold():
                    signal.raise_signal(signal.SIGUSR1)
                    written.append("to its end")
                written.append("not this")
            finally:
                for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
                    signal.raise_signal(number)
                written.append("what was begun")
    except Interruption as stop:
        raised.append((stop.code, str(stop)))
    assert raised == [(138, "Stopped by SIGUSR1.")]
    assert written == ["to its end", "what was begun"]


def test_an_exception_that_a_finalizer_loses_is_raised_again():
    class Finalized:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0)

    @raise_interrupts()
    def lose():
        Finalized()
        time.sleep(30)

    with pytest.raises(Interruption):
        lose()


def test_handlers_are_given_back_and_an_ignored_hangup_stays_ignored():
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1)
    before = {number: signal.getsignal(number) for number in numbers}
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with raise_interrupts():
            signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGTERM) is not before[signal.SIGTERM]
    finally:
        signal.signal(signal.SIGHUP, before[signal.SIGHUP])
    assert {number: signal.getsignal(number) for number in numbers} == before


def test_a_closed_terminal_ends_the_run_like_any_signal(tmp_path):
    """All that is printed after it fails, and the iteration is finished, saved and recorded all the same."""
    pid, terminal = pty.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may run under nohup
            exit_on_interrupt()
            sys.stdout, sys.stderr = open(1, "w", buffering=1), open(2, "w", buffering=1)  # noqa: SIM115
            logging.root.handlers[:] = [logging.StreamHandler(sys.stderr)]
            waiting = ("allow_packages=[stopping]", "+callbacks.pause._target_=stopping.PauseAt")
            at = ("+callbacks.pause.iteration=9", f"+callbacks.pause.folder={tmp_path}")
            cli.main(run.train, tiny(tmp_path / "run", *RUN, *DSM, *waiting, *at))
        except SystemExit as leaving:
            os._exit(leaving.code)
        finally:
            os._exit(99)
    os.set_blocking(terminal, False)
    deadline = time.monotonic() + 100
    while not (tmp_path / "paused").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.close(terminal)
    time.sleep(0.2)
    (tmp_path / "go").touch()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert (code, read_status(tmp_path / "run")["state"]) == (129, "interrupted")
    assert checkpoint(tmp_path / "run")["global_step"] == 9


# --- compilation ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(fast_paths.lookup_backend is None, reason="this torch does not tell when it compiles")
@pytest.mark.parametrize(("blocks", "running", "saved_at"), [(10, False, 5), (5, False, None), (10, True, 6)])
def test_a_signal_does_not_wait_for_the_compiler(blocks, running, saved_at, tmp_path, monkeypatch):
    monkeypatch.setattr(compile_choice, "costs", lambda *measured: Choice(True, "chosen"))
    short = (*DSM, "method.compile=auto", "trainer.max_steps=10", "n_validations=1", f"iterations_per_batch={blocks}")
    short = (*short, f"trainer.log_every_n_steps={blocks}")
    sent = []

    def send():
        if not sent:
            sent.append("once")
            signal.raise_signal(signal.SIGTERM)

    def compile_graph(graph, inputs, device):
        if not running:
            send()
        return lambda *inputs: (send(), graph(*inputs))[1]  # traced only

    monkeypatch.setattr(fast_paths, "_compile_graph", compile_graph)
    with pytest.raises((InterruptedRunError, Interruption), match="topped by SIGTERM"):
        train(tmp_path / "run", *short)
    assert sent
    assert read_status(tmp_path / "run")["state"] == "interrupted"
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    assert (checkpoint(tmp_path / "run")["global_step"] if last.exists() else None) == saved_at
    train(tmp_path / "run", *short, *(["ckpt=last"] if saved_at else []))
    train(tmp_path / "straight", *short)
    assert same_state(tmp_path / "run", tmp_path / "straight")


def test_the_table_of_troubleshooting_is_the_one_that_is_tested():
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    for phase in PHASES:
        assert f"| {phase} |" in text
    for name in SIGNALS:
        assert name in text
