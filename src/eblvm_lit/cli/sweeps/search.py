"""Searches: what a sweeper that reads values, such as Optuna's, needs besides its own configuration."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from eblvm_lit.errors import ConfigError
from eblvm_lit.evaluation.directions import direction

__all__ = ["is_search", "prepare_search", "value_of_divergence"]

log = logging.getLogger(__name__)

DIRECTIONS = {1: "maximize", -1: "minimize"}


def is_search(config: DictConfig) -> bool:
    """Whether the sweeper of a configuration has a direction, and thus reads the values of the jobs.

    Args:
        config: The configuration, including the node ``hydra``.

    Example:
        >>> is_search(OmegaConf.create({"hydra": {"sweeper": {"params": None}}}))
        False
    """
    return "direction" in config.hydra.sweeper


def prepare_search(config: DictConfig) -> None:
    """Complete the configuration of a search with what follows from the metric and the launcher, and store it.

    The direction follows from the metric. Jobs that run one after the other are proposed one at a time, so that each
    learns from all earlier ones. Without a shared storage, the sampler gets the seed of the runs, so that the same
    command proposes the same values. What the command line sets is kept. ``multirun.yaml``, by which
    ``sweep.resume=true`` finds the folder, is what Hydra's plain sweeper leaves, too.

    Args:
        config: The configuration of the sweep, including the node ``hydra``; changed in place.

    Raises:
        ConfigError: Without a metric; if neither the metric nor the command line tells the direction; or for an
            interval in a sweep that is no search.
    """
    if not is_search(config):
        _refuse_intervals(config)
        return
    metric, sweeper = config.optimized_metric, config.hydra.sweeper
    if not isinstance(metric, str):
        raise ConfigError("A search needs the name of the metric that it optimizes: optimized_metric=val/loss.")
    if metric.startswith("test"):
        log.warning("optimized_metric=%s: a search by the test split finds too good a value; use val/.", metric)
    if not _is_set(config, "direction"):
        if not direction(metric):
            raise ConfigError(
                f"optimized_metric={metric}: say by hydra.sweeper.direction=minimize or maximize which values are good."
            )
        _set(config, "direction", DIRECTIONS[direction(metric)])
    if "n_jobs" in sweeper and not _is_set(config, "n_jobs") and "Basic" in config.hydra.launcher._target_:
        _set(config, "n_jobs", 1)
    shared = sweeper.get("storage") is not None  # by processes that must not propose the same
    if "seed" in (sweeper.get("sampler") or {}) and sweeper.sampler.seed is None and not shared:
        _set(config, "sampler.seed", config.seed)
    folder = Path(config.hydra.sweep.dir)
    folder.mkdir(parents=True, exist_ok=True)
    OmegaConf.save(config, folder / "multirun.yaml")


def _refuse_intervals(config: DictConfig) -> None:
    for override in OverridesParser.create().parse_overrides(list(config.hydra.overrides.task)):
        if override.is_interval_sweep():
            raise ConfigError(f"{override.input_line} is a range to search in: add hydra/sweeper=optuna.")


def _is_set(config: DictConfig, key: str) -> bool:
    return any(text.lstrip("+").startswith(f"hydra.sweeper.{key}=") for text in config.hydra.overrides.hydra)


def _set(config: DictConfig, key: str, value: Any) -> None:
    """Set a key of the sweeper for the sweep and for its jobs, which are composed anew from the overrides."""
    with read_write(config.hydra), open_dict(config.hydra):
        OmegaConf.update(config, f"hydra.sweeper.{key}", value)
        config.hydra.overrides.hydra.append(f"hydra.sweeper.{key}={value}")


def value_of_divergence() -> float | None:
    """The worst value, which stands for a job of a search that has diverged; None if this is no such job."""
    if not HydraConfig.initialized():
        return None
    chosen = HydraConfig.get().sweeper.get("direction")
    signs = {name: sign for sign, name in DIRECTIONS.items()}
    sign = signs.get(getattr(chosen, "name", chosen)) if not OmegaConf.is_list(chosen) else None
    return None if sign is None else -sign * math.inf
