"""Train in several processes that share each minibatch; torch's elastic agent starts the processes, as in torchrun."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import configure_log
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.plugins.environments import SLURMEnvironment  # pyright: ignore[reportPrivateImportUsage]
from pytorch_lightning.utilities import rank_zero_only
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from eblvm_lit.errors import ConfigError, DataError, EblvmError, InterruptedRunError, NonFiniteError
from eblvm_lit.training.callbacks.preemption import stopping_signals
from eblvm_lit.training.provenance import resume_command
from eblvm_lit.utils.folders import claimed, prepare_folder
from eblvm_lit.utils.orphans import STARTING, end_with_parent

__all__ = ["check_launch", "claimed_by_run", "is_first", "run_in_processes", "started_outside"]

# The method by which processes are started. The tests set "fork", which is faster: with "spawn", each process imports
# torch again.
START_METHOD = "spawn"


class LostProcessError(EblvmError):
    """A process of the run was killed, for instance because it ran out of memory."""


def is_first() -> bool:
    """Return whether this is the process that writes files and prints, even before the process group exists."""
    return rank_zero_only.rank == 0


def started_outside() -> bool:
    """Return whether torchrun, SLURM or a run's elastic agent started this process as one of several."""
    return "LOCAL_RANK" in os.environ or SLURMEnvironment.detect()


@contextmanager
def claimed_by_run(folder: Path) -> Iterator[None]:
    """Create the folder of a run, and lock it against other runs until the block exits.

    If there are several processes, their parent process claims the folder for all of them.
    """
    if is_first() and STARTING not in os.environ:
        with claimed(prepare_folder(folder)):
            yield
    else:
        yield


def check_launch(n_nodes: int) -> None:
    """Raise an error for a launch that would wait forever for missing processes, or write into several folders.

    Args:
        n_nodes: The number of machines.

    Raises:
        ConfigError: With a command that works.
    """
    if not started_outside():
        if n_nodes > 1:
            raise ConfigError(
                f"trainer.num_nodes={n_nodes} needs processes on each machine, which torchrun or srun start: see "
                "docs/devices.md."
            )
    elif HydraConfig.initialized() and HydraConfig.get().mode != RunMode.MULTIRUN:
        named = [*HydraConfig.get().overrides.hydra, *HydraConfig.get().overrides.task]
        if not any(override.startswith(("hydra.run.dir=", "run_dir=")) for override in named):
            raise ConfigError(
                "Each process would name a folder after its own start time: give all of them one, such as "
                "hydra.run.dir=outputs/my_run."
            )


def run_in_processes(n: int, function: Callable[[DictConfig], Any], cfg: DictConfig) -> Any:
    """Call a function with the configuration in n new processes on this machine; return the first process's result.

    Args:
        n: The number of processes.
        function: A function at the top level of a module, which each process imports.
        cfg: The configuration.

    Raises:
        EblvmError: The first error that was raised in a process, or the reason why the processes have stopped.
    """
    # hide the elastic agent's messages, because the errors raised below say the same in one sentence
    logging.getLogger("torch.distributed.elastic").propagate = False
    logging.getLogger("torch.distributed.elastic").addHandler(logging.NullHandler())
    rendezvous = {"rdzv_backend": "c10d", "rdzv_endpoint": "127.0.0.1:0"}
    config = LaunchConfig(1, 1, n, run_id=cfg.run_dir, max_restarts=0, start_method=START_METHOD, **rendezvous)
    if hasattr(config, "signals_to_handle"):  # versions of torch before 2.9 do not have this setting
        config.signals_to_handle = ",".join(number.name for number in stopping_signals())
    hydra_log = OmegaConf.to_container(HydraConfig.get().job_logging, resolve=True) if HydraConfig.initialized() else {}
    resume = f"{resume_command(cfg.run_dir)}."
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    os.environ[STARTING] = "1"
    try:
        return elastic_launch(config, _work)(function, OmegaConf.to_container(cfg, resolve=True), hydra_log)[0]
    except SignalException as stop:
        raise _stopped(stop.sigval, resume) from None
    except ChildFailedError as error:
        raise (_in_one_sentence(error, resume) or error) from None
    finally:  # the agent does not restore the signal handlers that it replaces
        del os.environ[STARTING]
        for number, handler in before.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)


def _stopped(number: int, advice: str) -> InterruptedRunError:
    """Return the error that is raised after a signal has stopped all processes; the processes print the iteration."""
    return InterruptedRunError(f"Stopped by {signal.Signals(number).name}; {advice}", number)


def _in_one_sentence(error: ChildFailedError, resume: str) -> EblvmError | None:
    """Return the error of the first failed process in one sentence, or None if the user cannot correct the error."""
    rank, failure = error.get_first_failure()
    if isinstance(failure.message, str):  # the process exited without an exception of Python
        return LostProcessError(f"Process {rank} of the run was lost ({failure.message}); {resume}")
    name, _, sentence = failure.message["message"].partition(": ")
    if name == InterruptedRunError.__name__:  # one of the processes received a signal
        return _stopped(signal.Signals[sentence.split()[2]], resume)
    kinds = {kind.__name__: kind for kind in (ConfigError, DataError, NonFiniteError)}
    return kinds[name](sentence) if name in kinds else None


def _work(function: Callable[[DictConfig], Any], cfg: dict[str, Any], hydra_log: dict[str, Any]) -> Any:
    """Call a function with the configuration; this code runs in one of the child processes."""
    end_with_parent()
    os.setsid()  # a new session, so that Ctrl-C reaches only the elastic agent, which passes it on once
    rank_zero_only.rank = int(os.environ["RANK"])
    if not is_first():
        logging.disable(logging.WARNING)
    elif hydra_log:
        configure_log(OmegaConf.create(hydra_log))
    return function(OmegaConf.create(cfg))
