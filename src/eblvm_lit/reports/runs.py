"""Run folders: what a run was, and what it left."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from eblvm_lit.errors import ConfigError, DataError

__all__ = ["LAST", "Run", "flatten", "read_run", "read_runs"]

SPEED = "train/iterations_per_second"
LAST = " (last 3)"
CHOICES = "hydra.runtime.choices."


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        folder: Where it lies.
        config: Its resolved configuration, values by dotted path; null and empty ones are left out.
        choices: Option by group, as chosen for Hydra; empty where the folder has no ``.hydra``.
        explicit: Keys that the command line set.
        derived: Paths that the configuration computes from others, with all that is below them.
        metrics: Final metrics, the rate, and the mean of the last three validations of each validated metric.
        curves: Values by iteration, by name.
    """

    folder: Path
    config: Mapping[str, Any]
    choices: Mapping[str, str]
    explicit: tuple[str, ...]
    derived: frozenset[str]
    metrics: Mapping[str, float]
    curves: Mapping[str, Mapping[int, float]]


def read_runs(folders: Iterable[str | Path]) -> tuple[list[Run], list[Path]]:
    """Read all runs at any depth of some folders, each once.

    Args:
        folders: Run folders, or folders that hold some.

    Returns:
        The finished runs, and the folders of runs that have left no final metrics.

    Raises:
        ConfigError: If a folder does not exist.
        DataError: If a folder holds no run, no run has finished, or a file is damaged.
    """
    found: dict[Path, dict[str, Any]] = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise ConfigError(f"{folder} is not a folder." if folder.exists() else f"{folder} does not exist.")
        below = _run_folders(folder)
        if not below:
            raise DataError(f"{folder} holds no run: a run's folder has the config.yaml that train.py writes.")
        found |= {path: config for path, config in below.items() if path not in found}
    finished = [path for path in found if (path / "metrics.json").exists()]
    if not finished:
        raise DataError(f"No run in {', '.join(map(str, folders))} has finished: there is no metrics.json.")
    return [read_run(path, found[path]) for path in finished], [path for path in found if path not in finished]


def _run_folders(folder: Path) -> dict[Path, dict[str, Any]]:
    found = {}
    for parent, children, files in os.walk(folder):
        children[:] = sorted(child for child in children if not child.startswith("."))
        if "config.yaml" in files:
            config = _read_yaml(Path(parent) / "config.yaml")
            # other programs, and this one's conf/, have a config.yaml too
            if isinstance(config, dict) and all("_target_" in (config.get(key) or ()) for key in ("method", "data")):
                found[Path(parent).resolve()] = config
    return found


def read_run(folder: Path, config: Mapping[str, Any]) -> Run:
    """Read what a finished run has left.

    Args:
        folder: Its folder.
        config: The content of its ``config.yaml``.

    Raises:
        DataError: If a file is damaged.
    """
    hydra = folder / ".hydra"
    composed, runtime = (_read_mapping(hydra / name) for name in ("config.yaml", "hydra.yaml"))
    overrides = _read_yaml(hydra / "overrides.yaml")
    curves = _read_curves(folder / "metrics.csv")
    metrics = {f"{name}{LAST}": fmean(list(curve.values())[-3:]) for name, curve in curves.items() if len(curve) > 2}
    metrics = {name: value for name, value in metrics.items() if name.startswith("val/")}
    if SPEED in curves:
        metrics[SPEED] = median(curves[SPEED].values())
    return Run(
        folder=folder,
        config=flatten(config),
        choices={path.removeprefix(CHOICES): str(option) for path, option in runtime.items() if CHOICES in path},
        explicit=tuple(str(override).split("=")[0].lstrip("+") for override in overrides or ()),
        derived=frozenset(path for path, value in composed.items() if "${" in str(value)),
        metrics=metrics | _read_metrics(folder / "metrics.json"),
        curves=curves,
    )


def flatten(node: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The leaves of a nested configuration by dotted path, without null and empty ones; lists are leaves.

    Example:
        >>> flatten({"method": {"n_unroll": 5, "hypergradient": None}, "betas": [0.9, 0.95], "callbacks": {}})
        {'method.n_unroll': 5, 'betas': '[0.9,0.95]'}
    """
    flat: dict[str, Any] = {}
    for key, value in node.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            flat[f"{prefix}{key}"] = json.dumps(value, separators=(",", ":"))
        elif value is not None:
            flat[f"{prefix}{key}"] = value
    return flat


def _read_yaml(path: Path) -> Any:
    """None where there is no such file."""
    try:
        return OmegaConf.to_container(OmegaConf.load(path))
    except FileNotFoundError:
        return None
    except (yaml.YAMLError, OmegaConfBaseException, OSError, ValueError) as error:
        raise DataError(f"{path} is damaged or cannot be read ({_first_line(error)}).") from None


def _read_mapping(path: Path) -> dict[str, Any]:
    """The leaves of a file by dotted path; none where there is no such file."""
    content = _read_yaml(path)
    if content is not None and not isinstance(content, dict):
        raise DataError(f"{path} is damaged (it is not a mapping).")
    return flatten(content or {})


def _read_metrics(path: Path) -> dict[str, float]:
    try:
        metrics = json.loads(path.read_text())
        if not isinstance(metrics, dict):
            raise ValueError("it is not a mapping from names to numbers")
        for name, value in metrics.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ValueError(f"{name} is {value!r}, not a finite number")
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is damaged or cannot be read ({_first_line(error)}).") from None
    return {name: float(value) for name, value in metrics.items()}


def _read_curves(path: Path) -> dict[str, dict[int, float]]:
    """Finite values by iteration, in order; none where there is no such file, as with another logger."""
    if not path.exists():
        return {}
    curves: dict[str, dict[int, float]] = {}
    try:
        with open(path, newline="") as file:
            for row in sorted(csv.DictReader(file), key=lambda row: int(row["iteration"])):
                numbers = {name: float(cell) for name, cell in row.items() if cell}
                for name in numbers.keys() - {"iteration"}:
                    if math.isfinite(numbers[name]):
                        curves.setdefault(name, {})[int(row["iteration"])] = numbers[name]
    except KeyError:
        raise DataError(f"{path} is damaged: it has no column 'iteration'.") from None
    except (OSError, ValueError, TypeError, csv.Error) as error:
        raise DataError(f"{path} is damaged or cannot be read ({_first_line(error)}).") from None
    return curves


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
