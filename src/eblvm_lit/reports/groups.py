"""Groups of runs that differ in their seed alone, with labels that name the settings that distinguish them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

from eblvm_lit.reports.runs import Run
from eblvm_lit.utils.printing import printable

__all__ = ["Group", "group_runs", "setting_name"]

# Keys that change where a run reads and writes, where it starts or what it prints, but not its results.
INCIDENTAL = frozenset(
    (
        *("seed", "root", "run_dir", "save_dir", "outputs_dir", "csv_path", "folder", "ckpt", "show_config", "summary"),
        *("cache_dir", "sweep", "resume"),
        *("progress", "enable_progress_bar", "enable_model_summary", "log_every_n_steps", "profiler"),
        *(
            "at_validation",
            "allow_packages",
            "optimized_metric",
            "iterations_per_batch",
            "threads",
            "keep_freed_cpu_memory",
        ),
    )
)
INCIDENTAL_PARTS = (
    *("logger", "callbacks.figures", "callbacks.curves", "callbacks.nonfinite", "callbacks.preemption"),
    *("callbacks.progress", "callbacks.checkpoints.every"),
)
# Parts of the configuration whose settings are shown without a prefix: method.n_unroll as n_unroll.
PLAIN_PARTS = ("method", "model", "optimizer", "data", "trainer")
LONGEST, MOST_SETTINGS = 120, 12  # characters of a name or setting, and settings, in labels


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone.

    Attributes:
        runs: The runs, at least one.
        data: Name of the data set.
        method: Name of the method.
        paths: Dotted paths of the settings that distinguish this group from the others in the report.
    """

    runs: tuple[Run, ...]
    data: str
    method: str
    paths: tuple[str, ...] = ()

    @cached_property
    def config(self) -> dict[str, Any]:
        """The settings that the runs share, by dotted path."""
        return _settings(self.runs[0])

    @cached_property
    def settings(self) -> tuple[str, ...]:
        """The distinguishing settings, such as ``n_unroll=5``."""
        return tuple(_show(path, self) for path in self.paths)

    @property
    def label(self) -> str:
        """The method and the distinguishing settings."""
        more = len(self.settings) - MOST_SETTINGS
        return ", ".join([self.method, *self.settings[:MOST_SETTINGS], *[f"{more} more settings"] * (more > 0)])

    @property
    def repeats_a_seed(self) -> bool:
        """Whether two runs have the same seed, which makes their spread too small."""
        return len({run.config.get("seed") for run in self.runs}) < len(self.runs)


def _settings(run: Run) -> dict[str, Any]:
    """All settings that the results may depend on, except the seed."""
    return {path: value for path, value in run.config.items() if not _incidental(path)}


def _incidental(path: str) -> bool:
    return not INCIDENTAL.isdisjoint(path.split(".")) or any(f"{path}.".startswith(f"{p}.") for p in INCIDENTAL_PARTS)


def group_runs(runs: Iterable[Run]) -> list[Group]:
    """Group runs that differ in their seed alone.

    Args:
        runs: Runs of any methods and data sets.

    Returns:
        The groups, ordered by data set, method and settings.
    """
    gathered: dict[frozenset[tuple[str, Any]], list[Run]] = {}
    for run in runs:
        gathered.setdefault(frozenset(_settings(run).items()), []).append(run)
    names = _data_names([runs[0] for runs in gathered.values()])
    groups = [
        Group(tuple(runs), name, _method_name(runs[0])) for name, runs in zip(names, gathered.values(), strict=True)
    ]
    groups = [replace(group, paths=_distinguishing(group, groups)) for group in groups]
    return sorted(groups, key=lambda group: [_natural(text) for text in (group.data, group.label)])


def _data_name(run: Run) -> str:
    by_class = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", _class_name(str(run.config["data._target_"]))).lower()
    return printable(run.choices.get("data", by_class), LONGEST)


def _data_names(runs: Sequence[Run]) -> list[str]:
    """The data set of each run, with the size of its images where that differs: their metrics do not compare."""
    names, sizes = [_data_name(run) for run in runs], [run.config.get("data.size") for run in runs]
    several = {name for name in names if len({s for n, s in zip(names, sizes, strict=True) if n == name}) > 1}
    pairs = zip(names, sizes, strict=True)
    return [f"{name}_{size}" if name in several and isinstance(size, int) else name for name, size in pairs]


def _method_name(run: Run) -> str:
    paths = ("method._target_", "method.objective._target_")
    classes = [str(run.config[path]) for path in paths if path in run.config]
    return printable(run.choices.get("method", " ".join(map(_class_name, classes))), LONGEST)


def _class_name(target: str) -> str:
    return target.rsplit(".", 1)[-1]


def _natural(text: str) -> list[tuple[float, str]]:
    """A sorting key that puts n_unroll=10 after n_unroll=5."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:e-?\d+)?)", text)
    return [(float(part), "") if i % 2 else (-1.0, part) for i, part in enumerate(parts)]


def _distinguishing(group: Group, groups: Sequence[Group]) -> tuple[str, ...]:
    """Paths of the settings that differ among groups of one method, or that the command line changed for it."""
    on_data = [other for other in groups if other.data == group.data]
    rivals = [other for other in on_data if other.method == group.method]
    explicit = {path for other in rivals for run in other.runs for path in _explicit(run)}
    derived = {prefix for run in group.runs for prefix in run.derived}
    shown: dict[tuple[str, tuple[Any, ...]], str] = {}
    for path in sorted(group.config, key=lambda path: (path.count("."), path)):
        differs = len(set(_values(path, rivals))) > 1
        if path in explicit:
            # a value that most groups share is not shown
            distinguishes = differs or 2 * _values(path, on_data).count(group.config[path]) <= len(on_data)
        else:
            copied = not derived.isdisjoint(accumulate(path.split("."), "{}.{}".format))
            distinguishes = differs and not copied and not _explained(path, rivals)
        if distinguishes:
            # posterior.h_dim copies model.h_dim; without .hydra, equal names and values are the only sign of that
            shown.setdefault((path.rsplit(".", 1)[-1], _values(path, on_data)), path)
    return tuple(path for path in shown.values() if path not in ("data._target_", "method._target_"))


def _explicit(run: Run) -> Iterable[str]:
    """Paths that the command line set, as a value or as a choice from a configuration group."""
    for key in run.explicit:
        yield from (path for path in (key, f"method.{key}._target_", f"{key}._target_") if path in run.config)


def _values(path: str, groups: Sequence[Group]) -> tuple[Any, ...]:
    return tuple(group.config.get(path) for group in groups)


def _explained(path: str, rivals: Sequence[Group]) -> bool:
    """Whether a setting is there because of the class it belongs to, and is the same wherever it is."""
    owner = path.rpartition(".")[0]
    if path.endswith("._target_") or len(set(_values(f"{owner}._target_", rivals))) == 1:
        return False
    return len(set(_values(path, rivals)) - {None}) == 1


def _show(path: str, group: Group) -> str:
    value = group.config[path]
    if path.endswith("._target_"):
        path = path.removesuffix("._target_")
        part = path.rsplit(".", 1)[-1]
        return printable(f"{part}={group.runs[0].choices.get(part, _class_name(str(value)))}", LONGEST)
    return printable(f"{setting_name(path)}={str(value).lower() if isinstance(value, bool) else value}", LONGEST)


def setting_name(path: str) -> str:
    """The name of a setting in labels.

    Example:
        >>> setting_name("method.n_unroll"), setting_name("score.n_particles")
        ('n_unroll', 'score.n_particles')
    """
    part, _, name = path.partition(".")
    return name if part in PLAIN_PARTS else path
