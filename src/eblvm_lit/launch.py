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


def _start(rank: int, folder: Path) -> subprocess.Popen:
    """Start the process of a rank on this machine; what it says goes to a file of its own."""
    environment = {**os.environ, "LOCAL_RANK": str(rank), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "eblvm_lit.worker", str(folder / "config.yaml")]
    with open(_log_of(rank, folder), "wb") as file:
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file)


def _log_of(rank: int, folder: Path) -> Path:
    return folder / f"process_{rank}.log"


def _farewell(processes: list[subprocess.Popen], patience: float) -> None:
    """Wait for processes to end, and end those that do not."""
    deadline = time.monotonic() + patience
    for process in processes:
        try:
            process.wait(max(deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _lost(processes: list[subprocess.Popen], folder: Path) -> LostProcessError | None:
    """What to say of the first process that has failed."""
    for rank, process in enumerate(processes, 1):
        if process.poll():
            said = _log_of(rank, folder).read_text(errors="replace").strip().splitlines()
            return LostProcessError(
                f"Process {rank} of the run has ended with code {process.returncode}"
                + (f" ({said[-1].strip()})" if said else "")
                + f"; go on with the same command and ckpt={folder / 'checkpoints' / 'last.ckpt'}."
            )
    return None


def _watch(processes: list[subprocess.Popen], folder: Path, over: threading.Event) -> None:
    """End this process where another one is lost and this one waits for it for ever, as it does on GPUs."""
    while not over.wait(0.5):
        if _lost(processes, folder) is not None and not over.wait(GRACE):
            log.error("%s", _lost(processes, folder))
            _farewell(processes, 0.0)
            os._exit(1)


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
    own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "NODE_RANK": "0", "LOCAL_RANK": "0"}
    before = {name: os.environ.get(name) for name in (*own, "WORLD_SIZE")}
    os.environ.update({**own, "WORLD_SIZE": str(n)})
    processes, over = [_start(rank, folder) for rank in range(1, n)], threading.Event()
    threading.Thread(target=_watch, args=(processes, folder, over), daemon=True).start()
    patience, in_order = DISMISSAL, False
    try:
        yield
        patience, in_order = FAREWELL, True
    except EblvmError:  # which all processes have come upon
        in_order = True
        raise
    except RuntimeError as error:  # what collectives raise when the other end is gone
        time.sleep(1)
        lost = _lost(processes, folder)
        if lost is None:
            raise
        raise lost from error
    finally:
        over.set()
        _farewell(processes, patience)
        _clean_up(before)
        for rank in range(1, n):
            if in_order or _log_of(rank, folder).stat().st_size == 0:
                _log_of(rank, folder).unlink(missing_ok=True)


def _clean_up(before: dict[str, str | None]) -> None:
    """Leave the process as it was, for the next job of a sweep."""
    if dist.is_initialized():
        dist.destroy_process_group()
    for name, value in before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
