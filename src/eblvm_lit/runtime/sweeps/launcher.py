"""Checks of Hydra's launcher, and whether this process runs a job of a sweep."""

from __future__ import annotations

import importlib.util

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from eblvm_lit.errors import ConfigError

__all__ = ["check_launcher", "in_sweep"]


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
        target: The class of the launcher.

    Raises:
        ConfigError: Names the package to install.

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
