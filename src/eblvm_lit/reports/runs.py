"""Read runs from their folders, and form groups of runs that differ only in their seed."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from eblvm_lit import evaluation
from eblvm_lit.errors import ConfigError, DataError, escaped
from eblvm_lit.training import callbacks
from eblvm_lit.utils.incidental import COPIES, is_incidental
from eblvm_lit.utils.quantities import learn
from eblvm_lit.utils.run_files import flatten, read_command, read_curves
from eblvm_lit.utils.untrusted import read_yaml

__all__ = ["LAST", "SECONDS", "SPEED", "Group", "Run", "declare_all", "group_runs", "read_runs", "setting_name"]

SPEED = "train/iterations_per_second"
SECONDS = "train/seconds"
LAST = " (last 3)"
LARGEST = 1e100  # larger numbers are not used, because the square of a much larger number overflows float64
PREFIX = re.compile(r"^(method|model|optimizer|data|trainer)\.")


@dataclass(frozen=True)
class Run:
    """A finished run, read from its folder.

    Attributes:
        folder: The folder of the run.
        config: The resolved configuration by dotted key, without null and empty values.
        choices: The chosen option of each configuration group; empty for a run that was started from Python.
        asked: The keys that were set on the command line.
        metrics: The final metrics; the seconds of all iterations; and, for each metric of validations, the mean of the
            last three.
        curves: A table of the logged metrics, one column per metric, indexed by iteration.
    """

    folder: Path
    config: dict[str, Any]
    choices: dict[str, str]
    asked: tuple[str, ...]
    metrics: dict[str, float]
    curves: pd.DataFrame

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings on which the results may depend, except the seed."""
        return {path: value for path, value in self.config.items() if not is_incidental(path, *COPIES)}


def read_runs(folders: Iterable[str | Path]) -> tuple[list[Run], dict[Path, str]]:
    """Read all runs at any depth below some folders; a run found twice counts once.

    Returns:
        The finished runs, and the folders of the other runs with the reason why each is left out.

    Raises:
        ConfigError: If one of the folders does not exist.
        DataError: If there is no finished run.
    """
    found: dict[Path, None] = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise ConfigError(f"There is no folder {folder}.")
        found |= dict.fromkeys(sorted(path.parent.resolve() for path in folder.rglob("config.yaml")))
    runs = []
    left_out = {}
    for folder in found:
        try:
            config = flatten(read_yaml(folder / "config.yaml"))
            if folder.name == ".hydra" or not {"method._target_", "data._target_"} <= config.keys():
                continue  # one of Hydra's own files, or not the configuration of a run
            if (folder / "metrics.json").is_file():
                runs.append(_read_run(folder, config))
            else:
                left_out[folder] = "unfinished: it was stopped, has failed (train.log says why), or is still running"
        except Exception as error:  # reading can fail in any way, because other programs may have written the folder
            left_out[folder] = escaped(f"unreadable: {' '.join(str(error).split())[:200]}")
    if not runs:
        why = "".join(f" {folder} is {reason}." for folder, reason in list(left_out.items())[:1])
        raise DataError(f"No finished run is in {', '.join(map(str, folders))}.{why}")
    return runs, left_out


def declare_all() -> None:
    """Import all modules that declare metrics, their units, and whether higher values are better; this takes seconds.

    The import is needed for runs that have not stored the units and directions of their metrics in their folder.
    """
    for package in (evaluation, callbacks):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)


def _read_run(folder: Path, config: dict[str, Any]) -> Run:
    """Read a finished run, make its texts safe to print, and refuse final metrics that are too large to be squared."""
    curves = read_curves(folder / "metrics.csv").rename(columns=escaped)
    curves = curves.where(curves.abs() < LARGEST)[curves.index < LARGEST]
    validated = curves[[name for name in curves if name.startswith("val/")]].dropna(axis="columns", thresh=3)
    metrics = {f"{name}{LAST}": curve.dropna().tail(3).mean() for name, curve in validated.items()}
    if not learn(folder):
        declare_all()
    final = json.loads((folder / "metrics.json").read_text())
    metrics |= {escaped(name): float(value) for name, value in final.items()}
    if SPEED in metrics and "iteration" in metrics:
        metrics[SECONDS] = metrics["iteration"] / metrics[SPEED]
    if large := [name for name, value in metrics.items() if not abs(value) < LARGEST]:
        raise DataError(f"{large[0]} is {metrics[large[0]]}")
    command = read_command(folder)
    asked = tuple(escaped(text.split("=")[0].lstrip("+~")) for text in command.get("overrides", []))
    choices = {
        key: value if value is None else escaped(str(value)) for key, value in command.get("choices", {}).items()
    }
    return Run(
        folder,
        {  # keep numbers that floats represent exactly, and convert all other values to texts
            escaped(key): value if isinstance(value, int | float) and float(value) == value else escaped(str(value))
            for key, value in config.items()
        },
        choices,
        asked,
        metrics,
        curves,
    )


@dataclass(frozen=True)
class Group:
    """A group of runs that differ only in their seed.

    Attributes:
        runs: The runs, at least one.
        data: The name of the data set.
        method: The name of the method.
        keys: The keys of the settings that distinguish this group from other groups on the same data set.
    """

    runs: tuple[Run, ...]
    data: str
    method: str
    keys: tuple[str, ...] = ()

    def value(self, key: str) -> Any:
        """Return the chosen option of a configuration group, or the value of a setting; None if the run has neither."""
        run = self.runs[0]
        return run.choices.get(key, run.config.get(key))

    def text(self, key: str) -> str:
        """Return a setting and its value as text, such as ``n_unroll=5``."""
        value = self.value(key)
        if key.endswith("._target_"):
            key = key.removesuffix("._target_")
            value = str(value).rsplit(".", 1)[-1]
        return f"{setting_name(key)}={str(value).lower() if isinstance(value, bool) else value}"

    @property
    def settings(self) -> str:
        """Return one text with the settings that distinguish this group from others, and with their values."""
        return ", ".join(self.text(key) for key in self.keys if self.value(key) is not None)

    @property
    def label(self) -> str:
        """Return one text with the method, and with the settings that distinguish this group from others."""
        return ", ".join(filter(None, (self.method, self.settings)))

    def pooled(self, metric: str) -> pd.Series:
        """Return the final values of a metric, indexed by seed; NaN for a run without the metric."""
        seeds = [run.config.get("seed") for run in self.runs]
        return pd.Series([run.metrics.get(metric) for run in self.runs], seeds, dtype=float)


def setting_name(key: str) -> str:
    """Return the name of a setting for labels: its key without a prefix such as ``method.``.

    Example:
        >>> setting_name("method.n_unroll"), setting_name("score.n_particles")
        ('n_unroll', 'score.n_particles')
    """
    return PREFIX.sub("", key)


def group_runs(runs: Iterable[Run]) -> list[Group]:
    """Group runs that differ only in their seed; groups are ordered by data set, method and settings."""
    gathered = defaultdict(list)
    for run in runs:
        gathered[frozenset(run.settings.items())].append(run)
    groups = [Group(tuple(runs), _data_name(runs[0]), _method_name(runs[0])) for runs in gathered.values()]
    groups = [replace(group, data=_with_size(group, groups)) for group in groups]
    groups = [replace(group, keys=_keys(group, groups)) for group in groups]
    return sorted(groups, key=lambda group: [_natural(text) for text in (group.data, group.label)])


def _data_name(run: Run) -> str:
    name = run.config["data._target_"].rsplit(".", 1)[-1]
    return run.choices.get("data", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower())


def _with_size(group: Group, groups: Sequence[Group]) -> str:
    """Return the name of the data set, followed by the image size if the groups have different sizes.

    Metrics of images of different sizes cannot be compared, so each size counts as a data set of its own.
    """
    sizes = {other.value("data.size") for other in groups if other.data == group.data}
    return group.data if len(sizes) == 1 else f"{group.data}_{group.value('data.size')}"


def _method_name(run: Run) -> str:
    parts = [run.config.get(f"{part}._target_", "") for part in ("method", "method.objective")]
    return run.choices.get("method", " ".join(part.rsplit(".", 1)[-1] for part in parts).strip())


def _keys(group: Group, groups: Sequence[Group]) -> tuple[str, ...]:
    """Choose the keys of the settings that distinguish a group from the other groups on its data set.

    First come keys that were set on a command line, if their values differ between groups of the method, or if the
    group's value is one that at most half of all groups on the data set have. If these keys do not distinguish all
    groups of the method, further settings are added. A setting that only some groups have is added only if its values
    differ: that it exists at all follows from the class of a part, whose key is among the settings. A setting whose
    values are equal to those of a chosen one in all groups is a copy and is skipped.
    """
    on_data = [other for other in groups if other.data == group.data]
    rivals = [other for other in on_data if other.method == group.method]
    asked = dict.fromkeys(key for other in rivals for run in other.runs for key in run.asked)
    keys = [key for key in asked if key not in ("data", "data.size", "method") and not is_incidental(key, *COPIES)]
    keys = [key for key in keys if len({other.value(key) for other in rivals}) > 1 or _is_rare(group, key, on_data)]
    if len({tuple(other.value(key) for key in keys) for other in rivals}) < len(rivals):
        columns = {tuple(other.value(key) for other in rivals) for key in keys}
        paths = {path for other in rivals for path in other.runs[0].settings}
        for path in sorted(paths, key=lambda path: (path.count("."), path)):
            column = tuple(other.value(path) for other in rivals)
            own = column if path.endswith("._target_") else [value for value in column if value is not None]
            if len(set(own)) > 1 and column not in columns:
                keys.append(path)
                columns.add(column)
    return tuple(key for key in keys if group.value(key) is not None)


def _is_rare(group: Group, key: str, groups: Sequence[Group]) -> bool:
    return 2 * [other.value(key) for other in groups].count(group.value(key)) <= len(groups)


def _natural(text: str) -> list[tuple[float, str]]:
    """Return a sorting key that compares numbers in texts by value: n_unroll=10 comes after n_unroll=5."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:e-?\d+)?)", text)
    return [(float(part), "") if i % 2 else (-1.0, part) for i, part in enumerate(parts)]
