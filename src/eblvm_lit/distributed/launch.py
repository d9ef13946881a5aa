"""Several processes for one run: started here on one machine, found in the environment of torchrun or SLURM."""

from __future__ import annotations

import logging
import os
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
from pytorch_lightning.plugins.environments import SLURMEnvironment, TorchElasticEnvironment
from pytorch_lightning.utilities import rank_zero_only

from eblvm_lit.errors import ConfigError, EblvmError

__all__ = ["LostProcessError", "check_launch", "is_first", "launched", "started_outside"]

log = logging.getLogger(__name__)

# Seconds that processes are given to end by themselves: once one is lost, after an error, and after the run.
GRACE, DISMISSAL, FAREWELL = 30.0, 10.0, 60.0


class LostProcessError(EblvmError):
    """Another process of the run has ended, so that this one cannot go on."""


def is_first() -> bool:
    """Whether this is the process that writes and prints, as the environment has it before processes have met."""
    return rank_zero_only.rank == 0


def started_outside() -> str | None:
    """Who has started this run's processes: torchrun, SLURM, someone else; None where it is up to the run itself."""
    for name, environment in (("torchrun", TorchElasticEnvironment), ("SLURM", SLURMEnvironment)):
        if environment.detect():
            return name
    return "another launcher" if "LOCAL_RANK" in os.environ else None


def check_launch(n_nodes: int) -> None:
    """Refuse what cannot be launched, of a run that wants several devices.

    Args:
        n_nodes: Machines.

    Raises:
        ConfigError: With the command that can.
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
        return  # submitit gives all tasks of a job one folder
    named = [*hydra.overrides.hydra, *hydra.overrides.task]
    if not any(override.startswith(("hydra.run.dir=", "run_dir=")) for override in named):
        raise ConfigError(
            f"{who} starts each process by itself, and a folder named after the time would be another one in each: "
            f"give them one, such as hydra.run.dir=outputs/{'$SLURM_JOB_ID' if who == 'SLURM' else 'my_run'}."
        )


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class _Others:
    """The further processes of a run on this machine.

    Args:
        n: Number of all processes.
        folder: The run's.
    """

    def __init__(self, n: int, folder: Path) -> None:
        self.folder, self.over = folder, threading.Event()
        self.processes = {rank: _start(rank, folder) for rank in range(1, n)}
        threading.Thread(target=self._watch, daemon=True).start()

    def lost(self) -> LostProcessError | None:
        """What to say of the first one that has failed."""
        for rank, process in self.processes.items():
            if process.poll():
                said = _log_of(rank, self.folder).read_text(errors="replace").strip().splitlines()
                return LostProcessError(
                    f"Process {rank} of the run has ended with code {process.returncode}"
                    + (f" ({said[-1].strip()})" if said else "")
                    + f"; resume with the same command and ckpt={self.folder / 'checkpoints' / 'last.ckpt'}."
                )
        return None

    def _watch(self) -> None:
        """End this process where another one is lost and this one waits for it for ever, as it does on GPUs."""
        while not self.over.wait(0.5):
            if self.lost() is not None and not self.over.wait(GRACE):
                log.error("%s", self.lost())
                self.farewell(0.0)
                os._exit(1)

    def farewell(self, patience: float) -> None:
        """Wait for them to end, and end those that do not."""
        deadline = time.monotonic() + patience
        for process in self.processes.values():
            try:
                process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def forget(self, *, everything: bool) -> None:
        """Remove what they have said, or the files of those that have said nothing."""
        for rank in self.processes:
            if everything or _log_of(rank, self.folder).stat().st_size == 0:
                _log_of(rank, self.folder).unlink(missing_ok=True)


def _start(rank: int, folder: Path) -> subprocess.Popen:
    """Start the process of a rank; what it says goes to a file of its own."""
    environment = {**os.environ, "LOCAL_RANK": str(rank), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "eblvm_lit.distributed.worker", str(folder / "config.yaml")]
    with open(_log_of(rank, folder), "wb") as file:
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file)


def _log_of(rank: int, folder: Path) -> Path:
    return folder / f"process_{rank}.log"


@contextmanager
def launched(n: int, folder: Path) -> Iterator[None]:
    """Inside, the run has n processes on this machine, of which this is the first; they read ``config.yaml``.

    Args:
        n: Number of processes; nothing is started for one, nor where somebody else has started them.
        folder: The run's.

    Raises:
        LostProcessError: If another process has ended before the run has.
    """
    if n == 1 or started_outside() is not None:
        yield
        return
    with _environment(n):
        others, patience, in_order = _Others(n, folder), DISMISSAL, False
        try:
            yield
            patience, in_order = FAREWELL, True
        except EblvmError:  # which all processes have come upon
            in_order = True
            raise
        except RuntimeError as error:  # what collectives raise when the other end is gone
            time.sleep(1)
            lost = others.lost()
            if lost is None:
                raise
            raise lost from error
        finally:
            others.over.set()
            others.farewell(patience)
            others.forget(everything=in_order)


@contextmanager
def _environment(n: int) -> Iterator[None]:
    """What Lightning looks for where processes are started for it; then all is as before, for a sweep's next job."""
    own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "NODE_RANK": "0", "LOCAL_RANK": "0"}
    own["WORLD_SIZE"] = str(n)
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
