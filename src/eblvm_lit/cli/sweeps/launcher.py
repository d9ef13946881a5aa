"""Checks of Hydra's launcher and sweeper, whether this process runs a job of a sweep, and the workers of joblib."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Sequence

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from eblvm_lit.errors import ConfigError
from eblvm_lit.utils.printing import is_worker

__all__ = ["check_launcher", "exit_without_sweeper", "in_sweep", "prepare_worker"]

_parent: int | None = None  # of a worker process


def in_sweep() -> bool:
    """Whether this process runs a job of ``-m``.

    Example:
        >>> in_sweep()
        False
    """
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def prepare_worker() -> None:
    """Keep a process that runs jobs beside others from printing what only one process at a time can print.

    Progress bars of several processes would overwrite each other: rich takes the output for a file, and jobs print
    lines. Each worker would repeat Hydra's notice on the file of the launcher, which has the name of the plugin's own
    so that whoever lacks the plugin is told what to install. A worker whose sweep was ended saves what it trains, and
    ends, too.
    """
    global _parent
    os.environ["TTY_COMPATIBLE"] = "0"
    if _parent is None and is_worker():  # it is called before each job
        _parent = os.getppid()
        threading.Thread(target=_stop_without, args=(_parent,), daemon=True).start()
    warnings.filterwarnings("ignore", message=r"\s*'hydra/launcher/joblib' is validated against ConfigStore schema")


def _stop_without(parent: int) -> None:
    """Stop this process as SIGTERM does, again and again, once its parent has ended: there may be a job to come."""
    while os.getppid() == parent:
        time.sleep(1.0)
    while True:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1.0)


def check_launcher(target: str) -> None:
    """Refuse a launcher that is not installed.

    Args:
        target: The class of the launcher.

    Raises:
        ConfigError: Names the package to install.

    Example:
        >>> check_launcher("hydra._internal.core_plugins.basic_launcher.BasicLauncher")
    """
    package = ".".join(target.split(".")[:2])
    if not _is_installed(package):
        name = package.removeprefix("hydra_plugins.hydra_").removesuffix("_launcher")
        raise ConfigError(f"hydra/launcher={name} is not installed: pip install hydra-{name}-launcher.")


def exit_without_sweeper(args: Sequence[str]) -> None:
    """Exit with a message if the command line chooses Optuna's sweeper, which is not installed.

    Without its plugin, Hydra does not know the option, and would list the plain sweeper alone.

    Args:
        args: The command line.

    Example:
        >>> exit_without_sweeper(["method=dsm", "hydra/sweeper=basic"])
    """
    if "hydra/sweeper=optuna" in args and not _is_installed("hydra_plugins.hydra_optuna_sweeper"):
        sys.exit("ERROR: hydra/sweeper=optuna is not installed: pip install hydra-optuna-sweeper 'sqlalchemy<2'.")


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # its parent is missing
        return False
