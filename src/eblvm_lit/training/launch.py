"""Launch of the processes of a run: this module starts them on one machine; torchrun or SLURM start them on several."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from pytorch_lightning.plugins.environments import (
    SLURMEnvironment,  # pyright: ignore[reportPrivateImportUsage]
    TorchElasticEnvironment,  # pyright: ignore[reportPrivateImportUsage]
)
from pytorch_lightning.utilities import rank_zero_only

from eblvm_lit.errors import ConfigError, EblvmError
from eblvm_lit.training.callbacks.preemption import SIGNALS

__all__ = [
    "LostProcessError",
    "StoppedProcessError",
    "check_launch",
    "is_first",
    "launched",
    "started_outside",
]

log = logging.getLogger(__name__)

# Seconds that processes have to end by themselves: after one has failed, after an error here, and after the run.
AFTER_LOSS, AFTER_ERROR, AFTER_RUN = 30.0, 10.0, 60.0


class LostProcessError(EblvmError):
    """Another process of the run has ended unexpectedly, so this one cannot continue."""


def is_first() -> bool:
    """Whether this is the process that writes files and prints; also valid before the process group exists."""
    return rank_zero_only.rank == 0


class StoppedProcessError(EblvmError):
    """Another process of the run was told to stop outside of training, so this one stops, too."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def started_outside() -> str | None:
    """The launcher that has started this process: torchrun, SLURM or another one; None if the run starts its own."""
    for name, environment in (("torchrun", TorchElasticEnvironment), ("SLURM", SLURMEnvironment)):
        if environment.detect():
            return name
    return "another launcher" if "LOCAL_RANK" in os.environ else None


def check_launch(n_nodes: int) -> None:
    """Refuse a run with several devices that cannot be launched in this way.

    Args:
        n_nodes: The number of machines.

    Raises:
        ConfigError: Names a command that works.
    """
    who = started_outside()
    if who is None and n_nodes > 1:
        raise ConfigError(
            f"trainer.num_nodes={n_nodes} needs processes on each machine, which torchrun or srun start: see "
            "docs/multi_gpu.md."
        )
    if who not in ("torchrun", "SLURM") or not HydraConfig.initialized():
        return
    hydra = HydraConfig.get()
    if hydra.mode == RunMode.MULTIRUN:
        if who == "torchrun":
            raise ConfigError(
                "torchrun would start a whole sweep in each of its processes: run python train.py -m with "
                "trainer.devices=N instead, or a sweep on SLURM by hydra/launcher=submitit_slurm."
            )
        return  # with submitit, all tasks of a job share one folder
    named = [*hydra.overrides.hydra, *hydra.overrides.task]
    if not any(override.startswith(("hydra.run.dir=", "run_dir=")) for override in named):
        raise ConfigError(
            f"{who} starts each process separately, and each would name a folder after its own start time: "
            f"give them one, such as hydra.run.dir=outputs/{'$SLURM_JOB_ID' if who == 'SLURM' else 'my_run'}."
        )


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class _Workers:
    """The processes of a run on this machine, except the first.

    Args:
        n: The number of processes, including the first.
        folder: The run folder.
    """

    def __init__(self, n: int, folder: Path) -> None:
        self.folder, self.over = folder, threading.Event()
        self.processes = {rank: _start(rank, folder) for rank in range(1, n)}
        threading.Thread(target=self._watch, daemon=True).start()

    def lost(self) -> EblvmError | None:
        """The error for the first process that has failed or was told to stop, if any."""
        resume = f"resume with the same command and ckpt={self.folder / 'checkpoints' / 'last.ckpt'}."
        for rank, process in self.processes.items():
            code = process.poll()
            if not code:
                continue
            number = -code if code < 0 else code - 128
            if number in SIGNALS:
                name = signal.Signals(number).name
                return StoppedProcessError(f"Process {rank} of the run was stopped by {name}; {resume}", 128 + number)
            output = _log_of(rank, self.folder).read_text(errors="replace").strip().splitlines()
            last_line = f" ({output[-1].strip()})" if output else ""
            return LostProcessError(f"Process {rank} of the run has ended with code {code}{last_line}; {resume}")
        return None

    def _watch(self) -> None:
        """End this process if another one has failed: on GPUs, a collective would wait for it forever."""
        while not self.over.wait(0.5):
            error = self.lost()
            patience = AFTER_ERROR if isinstance(error, StoppedProcessError) else AFTER_LOSS
            if error is not None and not self.over.wait(patience):
                log.error("%s", error)
                self.stop(0.0)
                os._exit(getattr(error, "exit_code", 1))

    def stop(self, timeout: float) -> None:
        """Wait for the processes to end, and kill those that do not."""
        deadline = time.monotonic() + timeout
        for process in self.processes.values():
            try:
                process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def remove_logs(self, *, all_logs: bool) -> None:
        """Remove all log files, or only the empty ones."""
        for rank in self.processes:
            if all_logs or _log_of(rank, self.folder).stat().st_size == 0:
                _log_of(rank, self.folder).unlink(missing_ok=True)


def _start(rank: int, folder: Path) -> subprocess.Popen:
    """Start the process of a rank, with its output in a log file."""
    environment = {**os.environ, "LOCAL_RANK": str(rank), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "eblvm_lit.training.worker", str(folder / "config.yaml")]
    with open(_log_of(rank, folder), "wb") as file:
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file)


def _log_of(rank: int, folder: Path) -> Path:
    return folder / f"process_{rank}.log"


@contextmanager
def launched(n: int, folder: Path) -> Iterator[None]:
    """Start n − 1 further processes on this machine for the duration of the block; they read ``config.yaml``.

    Args:
        n: The number of processes; for one, or with an external launcher, nothing is started.
        folder: The run folder.

    Raises:
        LostProcessError: If another process ends before the run does.
        StoppedProcessError: If a signal has ended it.
    """
    if n == 1 or started_outside() is not None:
        yield
        return
    with _environment(n):
        workers, timeout, expected = _Workers(n, folder), AFTER_ERROR, False
        try:
            yield
            timeout, expected = AFTER_RUN, True
        except EblvmError:  # raised in all processes
            expected = True
            raise
        except RuntimeError as error:  # collectives raise it when another process has ended
            time.sleep(1)
            lost = workers.lost()
            if lost is None:
                raise
            raise lost from error
        finally:
            workers.over.set()
            workers.stop(timeout)
            workers.remove_logs(all_logs=expected)


@contextmanager
def _environment(n: int) -> Iterator[None]:
    """Set the environment variables that Lightning reads, and restore them for the next job of a sweep."""
    ours = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "NODE_RANK": "0", "LOCAL_RANK": "0"}
    ours["WORLD_SIZE"] = str(n)
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
