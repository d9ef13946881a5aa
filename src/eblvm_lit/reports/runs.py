"""Finished runs: their configuration, metrics and curves, read from run folders."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from eblvm_lit.errors import ConfigError, DataError
from eblvm_lit.reports.unfinished import UNREADABLE, Unfinished, read_unfinished
from eblvm_lit.training.status import STATUS, has_finished, read_status
from eblvm_lit.utils.printing import printable
from eblvm_lit.utils.run_files import flatten, read_curves, read_metrics, read_overrides, read_yaml

__all__ = ["LAST", "Run", "read_run", "read_runs"]

SPEED = "train/iterations_per_second"
LAST = " (last 3)"
CHOICES = "hydra.runtime.choices."
BESIDE = frozenset((STATUS, "metrics.json", "metrics.csv", "checkpoints", ".hydra"))  # what else tells a run's folder


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        folder: The run folder.
        config: The resolved configuration by dotted path, without null and empty values.
        choices: The chosen option of each Hydra group; empty if the folder has no ``.hydra``.
        explicit: The keys that the command line set.
        derived: Paths whose value, with everything below, the configuration interpolates from other keys.
        metrics: The final metrics, the iteration rate, and the mean of the last three validations of each metric.
        curves: One column per logged metric, indexed by iteration.
        status: The content of ``status.json``; empty for runs of earlier versions.
    """

    folder: Path
    config: Mapping[str, Any]
    choices: Mapping[str, str]
    explicit: tuple[str, ...]
    derived: frozenset[str]
    metrics: Mapping[str, float]
    curves: pd.DataFrame
    status: Mapping[str, Any] = field(default_factory=dict)


def read_runs(folders: Iterable[str | Path]) -> tuple[list[Run], list[Unfinished]]:
    """Read all runs at any depth below some folders; each run counts once.

    Args:
        folders: Run folders, or folders that contain run folders.

    Returns:
        The finished runs, and the others.

    Raises:
        ConfigError: If a folder does not exist.
        DataError: If a folder contains no run, or no run can be reported; one that cannot be read is among the others.
    """
    found: dict[Path, dict[str, Any] | DataError] = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise ConfigError(f"{folder} is not a folder." if folder.exists() else f"{folder} does not exist.")
        below = _run_folders(folder)
        if not below:
            raise DataError(f"{folder} holds no run: a run's folder has the config.yaml that train.py writes.")
        found |= {path: config for path, config in below.items() if path not in found}
    entries = [_read(path, config) for path, config in found.items()]
    unfinished = [entry for entry in entries if isinstance(entry, Unfinished)]
    if len(unfinished) == len(entries):
        first = next((f" The first reason is: {job.reason}" for job in unfinished if job.reason), "")
        bad = any(job.state == UNREADABLE for job in unfinished)
        why = "can be read" if bad else "has finished: there is no metrics.json"
        raise DataError(f"No run in {', '.join(map(str, folders))} {why}.{first}")
    return [entry for entry in entries if isinstance(entry, Run)], unfinished


def _read(folder: Path, config: dict[str, Any] | DataError) -> Run | Unfinished:
    """A run of any state; one from elsewhere may have damaged files, and does not end the report of the others."""
    try:
        if isinstance(config, DataError):
            raise config
        return read_run(folder, config) if config and has_finished(folder) else read_unfinished(folder)
    except DataError as error:
        return Unfinished(folder, UNREADABLE, printable(error))


def _run_folders(folder: Path) -> dict[Path, dict[str, Any] | DataError]:
    """Configurations by folder, or why one cannot be read; empty for a job that failed before it wrote one."""
    found: dict[Path, dict[str, Any] | DataError] = {}
    for parent, children, files in os.walk(folder):
        names = {*children, *files}
        children[:] = sorted(child for child in children if not child.startswith("."))
        if "config.yaml" in files:
            config = _read_config(Path(parent), names)
            if config is not None:
                found[Path(parent).resolve()] = config
        if STATUS in files:
            found.setdefault(Path(parent).resolve(), {})
    return found


def _read_config(folder: Path, names: set[str]) -> dict[str, Any] | DataError | None:
    """The configuration of a run; None for conf/ and folders of other programs, which contain a config.yaml too."""
    path = folder / "config.yaml"
    try:
        config = read_yaml(path)
    except DataError as error:
        return None if names.isdisjoint(BESIDE) else error
    parts = [config.get(key) for key in ("method", "data")] if isinstance(config, dict) else []
    if not parts or not all(isinstance(part, dict) and "_target_" in part for part in parts):
        return None
    for key, part in zip(("method", "data"), parts, strict=True):
        if not isinstance(part["_target_"], str):
            return DataError(f"{path} is damaged ({key}._target_ is {part['_target_']!r}, which is no class).")
    return config


def read_run(folder: Path, config: Mapping[str, Any]) -> Run:
    """Read the files of a finished run.

    Args:
        folder: The run folder.
        config: The content of ``config.yaml``.

    Raises:
        DataError: If a file is damaged.
    """
    hydra = folder / ".hydra"
    composed, runtime = (_read_mapping(hydra / name) for name in ("config.yaml", "hydra.yaml"))
    overrides = read_overrides(folder)
    curves = read_curves(folder / "metrics.csv")
    validated = curves[[name for name in curves if name.startswith("val/")]].dropna(axis="columns", thresh=3)
    metrics = {f"{name}{LAST}": curve.dropna().tail(3).mean() for name, curve in validated.items()}
    if SPEED in curves:
        metrics[SPEED] = curves[SPEED].median()
    return Run(
        folder=folder,
        config=flatten(config),
        choices={path.removeprefix(CHOICES): str(option) for path, option in runtime.items() if CHOICES in path},
        explicit=tuple(override.split("=")[0].lstrip("+") for override in overrides),
        derived=frozenset(path for path, value in composed.items() if "${" in str(value)),
        metrics=metrics | read_metrics(folder / "metrics.json"),
        curves=curves,
        status=read_status(folder),
    )


def _read_mapping(path: Path) -> dict[str, Any]:
    """The leaves of a YAML file by dotted path; none if the file does not exist."""
    content = read_yaml(path)
    if content is not None and not isinstance(content, dict):
        raise DataError(f"{path} is damaged (it is not a mapping).")
    return flatten(content or {})
