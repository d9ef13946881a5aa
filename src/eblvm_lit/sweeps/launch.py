"""What cannot be launched as a sweep."""

from __future__ import annotations

import importlib.util
import os

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from eblvm_lit.errors import ConfigError

__all__ = ["check_job", "check_launcher", "in_sweep"]

STARTED_ELSEWHERE = ("SLURM_NTASKS", "TORCHELASTIC_RUN_ID")  # SLURM or torchrun has started the processes
INSIDE = ("spawn", "fork", "notebook", "single_device")  # strategies that do not run the command line again


def in_sweep() -> bool:
    """Whether this process runs a job of ``-m``.

    Example:
        >>> in_sweep()
        False
    """
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def check_launcher(target: str) -> None:
    """Refuse a launcher that is not installed.

    Args:
        target: Its class.

    Raises:
        ConfigError: With what to install.

    Example:
        >>> check_launcher("hydra._internal.core_plugins.basic_launcher.BasicLauncher")
    """
    package = ".".join(target.split(".")[:2])
    try:
        found = importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        found = False
    if not found:
        name = package.removeprefix("hydra_plugins.hydra_").removesuffix("_launcher")
        raise ConfigError(f"hydra/launcher={name} is not installed: pip install 'eblvm_lit[{name}]'.")


def check_job(cfg: DictConfig) -> None:
    """Refuse a job whose processes would each start the whole sweep again.

    Lightning's ``ddp`` starts them by running the command line once more, ``-m`` included.

    Raises:
        ConfigError: With what to use instead.
    """
    alone = str(cfg.trainer.devices) == "1" and cfg.trainer.num_nodes == 1
    strategy = str(cfg.trainer.get("strategy") or "auto")
    if alone or not in_sweep() or any(word in strategy for word in INSIDE):
        return
    if not any(name in os.environ for name in STARTED_ELSEWHERE):
        raise ConfigError(
            f"A sweep (-m) cannot have jobs of several processes with trainer.strategy={strategy}, each of which would "
            "start the whole sweep again: use trainer.strategy=ddp_spawn, hydra/launcher=submitit_slurm, or "
            "trainer.devices=1 with hydra/launcher=joblib."
        )
