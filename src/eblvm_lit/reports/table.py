"""Means over seeds, beside what was published."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from eblvm_lit.errors import ConfigError
from eblvm_lit.reports.groups import Group
from eblvm_lit.reports.published import Published, direction, find_published
from eblvm_lit.reports.runs import LAST, SPEED

__all__ = ["Cell", "choose_metrics", "footnotes", "lines", "summarise", "to_csv", "to_markdown"]

WORSE = "†"
ARROWS = {1: " ↑", -1: " ↓", 0: ""}
CSV_COLUMNS = ("data", "method", "settings", "metric", "mean", "std", "n", "published", "worse", "source")


@dataclass(frozen=True)
class Cell:
    """A metric over the runs of a group.

    Attributes:
        metric: Its name.
        values: One a run that has it.
        published: The number to compare the mean with, if there is one.
    """

    metric: str
    values: tuple[float, ...]
    published: Published | None = None

    @property
    def mean(self) -> float | None:
        """None where no run has the metric."""
        return fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """Sample standard deviation (divided by n − 1); None below two runs."""
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def worse(self) -> bool | None:
        """Whether the mean is worse than the published number; None where that cannot be said."""
        if self.published is None or self.mean is None or not direction(self.metric):
            return None
        return direction(self.metric) * (self.mean - self.published.value) < 0

    def text(self, n_runs: int) -> str:
        """For readers: mean ± standard deviation, the mark, and how many of ``n_runs`` have it where not all do.

        Example:
            >>> Cell("test/fisher", (-5880.0, -5882.0), Published(-5885.09, "a paper")).text(n_runs=3)
            '-5881.0 ± 1.4 † (n = 2)'
        """
        if self.mean is None:
            return ""
        short = len(self.values) < n_runs
        return f"{_spread(self.mean, self.std)}{f' {WORSE}' * bool(self.worse)}{f' (n = {len(self.values)})' * short}"


def _spread(mean: float, std: float | None) -> str:
    if not std:
        return _number(mean) if std is None else f"{_number(mean)} ± 0"
    decimals = min(6, max(0, 1 - math.floor(math.log10(std))))  # two digits of the spread, and the mean as exact
    return f"{mean:.{decimals}f} ± {std:.{decimals}f}"


def _number(value: float) -> str:
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.4g}"


def choose_metrics(groups: Iterable[Group], names: Sequence[str] = ()) -> list[str]:
    """The columns of the table.

    Args:
        groups: Its rows.
        names: Metrics that are asked for; if none, all of the test split, the mean of the last three validations of
            the log-likelihood, and the iteration rate.

    Returns:
        Names in order: as asked for, or those that have a better and a worse first.

    Raises:
        ConfigError: If no run has a metric that is asked for.
    """
    there = {name for group in groups for run in group.runs for name in run.metrics}
    unknown = [name for name in names if name not in there]
    if unknown:
        raise ConfigError(f"No run has the metric {unknown[0]!r}; there are {', '.join(sorted(there))}.")
    if names:
        return list(dict.fromkeys(names))
    tests = [name for name in there if name.startswith(("test/", "test_best/"))]
    tests.sort(key=lambda name: (-(direction(name) ** 2), name))
    tests.sort(key=lambda name: {1: 0, -1: 1, 0: 2}[direction(name)])
    return tests + [name for name in (f"val/log_likelihood{LAST}", SPEED) if name in there]


def summarise(group: Group, metrics: Iterable[str]) -> list[Cell]:
    """One cell a metric."""
    published = find_published(group.config)
    return [
        Cell(name, tuple(run.metrics[name] for run in group.runs if name in run.metrics), published.get(name))
        for name in metrics
    ]


def lines(groups: Sequence[Group], metrics: Sequence[str]) -> list[list[str]]:
    """The table for readers: a header and a row a group; published numbers stand beside the metric that has any."""
    rows = [summarise(group, metrics) for group in groups]
    has_published = [any(row[i].published for row in rows) for i in range(len(metrics))]
    header = ["data", "method", "n"]
    for name, has in zip(metrics, has_published, strict=True):
        header += [f"{name}{ARROWS[direction(name)]}", *["published"] * has]
    body = []
    for group, row in zip(groups, rows, strict=True):
        line = [group.data, group.label, str(len(group.runs))]
        for cell, has in zip(row, has_published, strict=True):
            line += [cell.text(len(group.runs)), *[_number(cell.published.value) if cell.published else ""] * has]
        body.append(line)
    return [header, *body]


def footnotes(groups: Sequence[Group], metrics: Sequence[str]) -> list[str]:
    """What the reader of the table has to know, a sentence a line."""
    cells = [cell for group in groups for cell in summarise(group, metrics)]
    notes = ["Mean ± sample standard deviation over n runs that differ in their seed alone."]
    if any(cell.worse for cell in cells):
        notes.append(f"{WORSE} The mean is worse than the published number (↑ higher is better, ↓ lower is better).")
    sources = dict.fromkeys(cell.published.source for cell in cells if cell.published)
    if sources:
        notes.append(f"Published: {'; '.join(sources)}.")
    if any(name.endswith(LAST) for name in metrics):
        notes.append(f"{LAST.strip()}: mean of the last three validations of each run.")
    notes += [
        f"{group.data}, {group.label}: some of its runs have the same seed, so that their spread is too small."
        for group in groups
        if group.repeats_a_seed
    ]
    return notes


def to_markdown(table: Sequence[Sequence[str]], notes: Iterable[str]) -> str:
    """A table in GitHub's Markdown, with a paragraph a note.

    Example:
        >>> print(to_markdown([["data", "method", "n"], ["digits", "dsm", "3"]], ["A note."]))
        | data | method | n |
        | --- | --- | ---: |
        | digits | dsm | 3 |
        <BLANKLINE>
        A note.
        <BLANKLINE>
    """
    header, *body = ([cell.replace("|", r"\|") for cell in line] for line in table)
    rule = ["---" if i < 2 else "---:" for i in range(len(header))]
    rows = [f"| {' | '.join(line)} |" for line in (header, rule, *body)]
    return "\n".join(rows) + "\n\n" + "\n\n".join(notes) + "\n"


def to_csv(groups: Iterable[Group], metrics: Sequence[str]) -> str:
    """One line a group and metric, numbers in full; empty where there is none."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for group in groups:
        for cell in summarise(group, metrics):
            value, source = (cell.published.value, cell.published.source) if cell.published else (None, None)
            ours = (cell.metric, cell.mean, cell.std, len(cell.values))
            writer.writerow((group.data, group.method, ", ".join(group.settings), *ours, value, cell.worse, source))
    return text.getvalue()
