"""Whole runs and scripts in forked processes, which need not import the libraries again."""

import logging
import os
import runpy
import subprocess
import sys
import time
import traceback
from multiprocessing import get_context
from pathlib import Path

import sklearn.datasets  # noqa: F401 - loaded here, and not by each process
import torch

from eblvm_lit.cli.commands import outcome_of
from eblvm_lit.runs import run
from eblvm_lit.training import processes
from helpers.shell import ROOT, tiny

__all__ = ["RUN", "Forked", "Launch", "gone", "run_script", "run_scripts"]

# Options of a run with validations at iterations 6, 12 and 18, checkpoints at 4, 8, 12 and 16, and a short minibatch at
# iteration 13.
RUN = (
    *("trainer.max_steps=18", "n_validations=3", "iterations_per_batch=2", "trainer.log_every_n_steps=2"),
    "data.batch_size=108",
    *("callbacks.checkpoints.every=4", "optimizer.lr=0.01", "final_lr=1e-4", "method.compile=false"),
    *("trainer.precision=64-true", "trainer.accelerator=cpu", "show_config=false"),
)
PAUSE = ("allow_packages=[helpers]", "+callbacks.pause._target_=helpers.stopping.PauseAt")


class Forked:
    """A forked process with the interface of ``subprocess.Popen``."""

    def __init__(self, target, *args):
        self._process = get_context("fork").Process(target=target, args=args)
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self):
        return self._process.exitcode

    def poll(self):
        self._process.join(0)
        return self.returncode

    def wait(self, timeout=None):
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("forked", timeout)


def _speak_into(path):
    """Redirect all output and logs of this process to a file, and remove pytest's handlers."""
    torch.set_num_threads(1)
    file = open(path, "w", buffering=1)  # noqa: SIM115 - to the end of the process
    os.dup2(file.fileno(), 1)
    os.dup2(file.fileno(), 2)
    sys.stdout = sys.stderr = file
    logging.root.handlers[:] = [logging.StreamHandler(file)]


def _leave(call):
    """Call a function, and then end this process with the exit code that the interpreter would return."""
    code = 0
    try:
        call()
    except SystemExit as leaving:
        code = leaving.code or 0
        if isinstance(code, str):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    os._exit(code)


def _script(path, args, folder):
    """Run a script with its arguments as the interpreter would."""
    _speak_into(folder / "said")
    os.chdir(folder)
    sys.argv = [path, *args]
    _leave(lambda: runpy.run_path(path, run_name="__main__"))


def run_script(script, *args, folder):
    """Run a script of the repository in a folder as a user would; return its exit code and all that it printed."""
    process = Forked(_script, str(ROOT / script), args, Path(folder))
    process.wait(300)
    return process.returncode, (Path(folder) / "said").read_text()


def _scripts(path, commands, folder):
    _speak_into(folder / "said")
    os.chdir(folder)

    def one_after_the_other():
        for args in commands:
            sys.argv = [path, *args]
            try:
                runpy.run_path(path, run_name="__main__")
            except SystemExit as leaving:
                print(leaving.code)
            print("---", flush=True)

    _leave(one_after_the_other)


def run_scripts(script, commands, folder):
    """Run a script once for each command, all in one process, and return what each of them printed."""
    process = Forked(_scripts, str(ROOT / script), commands, Path(folder))
    process.wait(300)
    assert process.returncode == 0, (Path(folder) / "said").read_text()
    return (Path(folder) / "said").read_text().split("---\n")[:-1]


def _trained(cfg):
    with outcome_of(cfg) as outcome:
        outcome.metrics = run.train(cfg)


def _first(folder, cfg, prepare):
    """Train as the command line does, in the process that starts the other processes of a run."""
    _speak_into(folder.parent / "said")
    work = processes._work

    def noted(*args):  # each process writes its id into a file
        (folder.parent / f"pid_{os.environ['RANK']}").write_text(str(os.getpid()))
        return work(*args)

    processes.START_METHOD = "fork"
    processes._work = noted
    prepare()
    _leave(lambda: _trained(cfg))


class Launch:
    """A run in several processes, which writes into a subfolder and can pause in an iteration.

    The processes are forked from this one. The process that starts the others calls ``prepare`` first.
    """

    def __init__(self, folder, *overrides, n=2, pause=None, prepare=lambda: None):
        self.folder = Path(folder)
        self.run = Path(folder) / "run"
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in ("paused", "go", "pid_0", "pid_1"):
            (self.folder / name).unlink(missing_ok=True)
        waiting = (*PAUSE, f"+callbacks.pause.iteration={pause}", f"+callbacks.pause.folder={self.folder}")
        options = (*RUN, f"trainer.devices={n}", *(waiting if pause else ()), *overrides)
        self.first = Forked(_first, self.run, tiny(self.run, *options), prepare)

    def pid(self, rank):
        """Return the id of the process with a given rank; None stands for the process that starts the others."""
        return self.first.pid if rank is None else int((self.folder / f"pid_{rank}").read_text())

    def wait_for_pause(self):
        while not (self.folder / "paused").exists():
            assert self.first.poll() is None
            time.sleep(0.02)

    def send(self, number, rank):
        """Send a signal to a process while all are paused, then let them continue."""
        self.wait_for_pause()
        os.kill(self.pid(rank), number)
        time.sleep(0.2)
        (self.folder / "go").touch()

    @property
    def said(self):
        return (self.folder / "said").read_text()

    def wait(self):
        self.first.wait()
        return self.first.returncode


def gone(pid):
    """Wait until a process has ended with all its threads, because the last thread closes the files of the process."""
    while True:
        try:
            zombie = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
            if zombie and len(list(Path(f"/proc/{pid}/task").iterdir())) == 1:
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
