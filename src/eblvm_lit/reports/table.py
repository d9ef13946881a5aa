"""The tables of a report, which show the mean of each metric over seeds beside the published number."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any, NamedTuple

import pandas as pd
import yaml
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from eblvm_lit.errors import ConfigError
from eblvm_lit.reports.comparison import interval
from eblvm_lit.reports.runs import LAST, SPEED, Group
from eblvm_lit.utils.quantities import direction

__all__ = ["ARROWS", "choose_metrics", "find_published", "footnotes", "show", "summarise", "tables", "to_markdown"]

WORSE = "†"
UNLIKE = "‡"
BEST = "★"
BEST_OF_METHOD = "☆"
ARROWS = {1: " ↑", -1: " ↓", 0: ""}
LABELS = ("method", "best", "second")  # the columns whose texts may be wrapped in the terminal
UNITS = {
    "trainer.max_steps": "{:,} iterations",
    "method.optimizer.lr": "learning rate {:g}",
    "method.energy.network.rectified_shortcut": "rectified_shortcut {}",
}


class Published(NamedTuple):
    """A published number, its source, and the differences between the published training and the training of a run."""

    value: float = math.nan
    source: str = ""
    differs: str = ""


@functools.cache
def _entries() -> list[dict[str, Any]]:
    papers = yaml.safe_load((files(__package__) / "published.yaml").read_text())
    return [entry for paper in papers.values() for entry in paper]


def find_published(config: Mapping[str, Any]) -> dict[str, Published]:
    """Find the numbers that were published for the method, data set and settings of a run.

    Returns a dict by the name of the metric. If several entries of ``published.yaml`` match, the first one counts.

    Args:
        config: The resolved configuration of the run by dotted key.

    Example:
        >>> find_published({"data._target_": "eblvm_lit.data.digits.Digits"})
        {}
    """
    found: dict[str, Published] = {}
    for entry in _entries():
        wanted = entry["when"].items()
        if all(config.get(path) in (value if isinstance(value, list) else [value]) for path, value in wanted):
            differs = _differs(config, entry["trained"])
            for metric, value in entry["values"].get(config.get(entry["by"]), {}).items():
                found.setdefault(metric, Published(value, entry["source"], differs))
    return found


def _differs(config: Mapping[str, Any], trained: Mapping[str, float]) -> str:
    """Describe how the training of a run differs from the published training.

    Example:
        >>> _differs({"trainer.max_steps": 300, "method.optimizer.lr": 0.1}, {"trainer.max_steps": 20_000})
        'published: 20,000 iterations; this run: 300'
    """
    other = [path for path, value in trained.items() if config.get(path) != value]
    published = ", ".join(UNITS[path].format(trained[path]) for path in other)
    return f"published: {published}; this run: {', '.join(str(config.get(path)) for path in other)}" if other else ""


def choose_metrics(groups: Sequence[Group], names: Sequence[str] = ()) -> list[str]:
    """Choose the metrics that are the columns of the table.

    Args:
        groups: The groups of runs that are the rows of the table.
        names: The requested metrics. If empty, these are all metrics of the test split, first those of which higher is
            better, then those of which lower is better, then the others; the mean log-likelihood of the last three
            validations; and the iterations per second.

    Raises:
        ConfigError: If no run has a requested metric.
    """
    there = {name for group in groups for run in group.runs for name in run.metrics}
    if unknown := [name for name in names if name not in there]:
        raise ConfigError(f"No run has the metric {unknown[0]!r}; there are {', '.join(sorted(there))}.")
    tests = [name for name in there if name.startswith(("test/", "test_best/"))]
    tests.sort(key=lambda name: ((1, -1, 0).index(direction(name)), name))
    return list(names) or tests + [name for name in (f"val/log_likelihood{LAST}", SPEED) if name in there]


def summarise(groups: Sequence[Group], metrics: Sequence[str]) -> pd.DataFrame:
    """Summarise groups of runs in one table, with one row for each metric of each group.

    Columns include ``std``, the standard deviation with the divisor n - 1; ``low`` and ``high``, the 95 % confidence
    interval of the mean; ``best``, a mark at the best mean on the data set or at the best mean of the method; and
    ``text``, the text that the tables show.
    """
    rows = []
    for i, group in enumerate(groups):
        published = find_published(group.runs[0].config)
        for metric in metrics:
            values = group.pooled(metric)
            number = published.get(metric, Published())
            mean = values.mean()
            n = int(values.count())
            if n:
                comparable = direction(metric) and not math.isnan(number.value) and not number.differs
                worse = direction(metric) * (mean - number.value) < 0 if comparable else None
                names = (i, group.data, group.method, group.settings, metric)
                few = f" (n = {n})" * (n < len(values))
                rows.append((*names, mean, values.std(), n, *interval(values), *number, worse, few))
    columns = ["group", "data", "method", "settings", "metric", "mean", "std", "n", "low", "high", *Published._fields]
    summary = pd.DataFrame(rows, columns=[*columns, "worse", "text"]).rename(columns={"value": "published"})
    summary["best"] = _best(summary)
    marks = summary["worse"].eq(True).map({True: f" {WORSE}", False: ""}) + summary["best"] + summary["text"]
    numbers = summary[["mean", "std", "low", "high"]].itertuples(index=False)
    return summary.assign(text=[_text(*row, mark) for row, mark in zip(numbers, marks, strict=True)])


def _best(summary: pd.DataFrame) -> pd.Series:
    """Mark the best mean of each metric on each data set, and the best mean of each method.

    Returns the mark of each row of the summary, which is empty for all other means. A mean is marked only if at least
    two means can be compared.
    """
    marks = pd.Series("", summary.index, dtype=object)
    way = summary["metric"].map(direction)
    for mark, by in ((BEST_OF_METHOD, ["data", "metric", "method"]), (BEST, ["data", "metric"])):
        rivals = (summary["mean"] * way).groupby([summary[name] for name in by])
        marks[(way != 0) & (rivals.transform("size") > 1) & rivals.rank(ascending=False).eq(1)] = f" {mark}"
    return marks


def _text(mean: float, std: float = math.nan, low: float = math.nan, high: float = math.nan, mark: str = "") -> str:
    r"""Format a mean with its standard deviation to two digits, and its confidence interval on a second line.

    Example:
        >>> _text(-5881.0, 2**0.5), _text(12.345), _text(0.5, 0.0)
        ('-5881.0 ± 1.4', '12.35', '0.5 ± 0')
        >>> _text(3.0, 7**0.5, -3.57, 9.57, " †")
        '3.0 ± 2.6 †\n[-3.6, 9.6]'
    """
    equal = std <= 1e-12 * abs(mean)  # all values are equal up to rounding
    if math.isnan(std) or equal:
        return (f"{mean:.2f}" if abs(mean) >= 10 else f"{mean:.4g}") + (" ± 0" if equal else "") + mark
    decimals = min(6, max(0, 1 - math.floor(math.log10(std))))
    bounds = "" if math.isnan(low) else f"\n[{low:.{decimals}f}, {high:.{decimals}f}]"
    return f"{mean:.{decimals}f} ± {std:.{decimals}f}{mark}{bounds}"


def tables(groups: Sequence[Group], summary: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Make one table of texts per data set; a column of published numbers follows each metric that has such numbers."""
    found = {}
    for data, of_data in summary.groupby("data", sort=False):
        rows = [i for i, group in enumerate(groups) if group.data == data]
        table = pd.DataFrame(
            {"method": [groups[i].label for i in rows], "n": [len(groups[i].runs) for i in rows]}, rows
        )
        for metric, cells in of_data.set_index("group").groupby("metric", sort=False):
            table[f"{metric}{ARROWS[direction(metric)]}"] = cells["text"]
            if cells["published"].notna().any():
                marks = cells["differs"].ne("").map({True: f" {UNLIKE}", False: ""})
                numbers = cells["published"].map(_text, na_action="ignore") + marks
                table.insert(len(table.columns), "published", numbers, allow_duplicates=True)
        found[data] = table.astype(object).fillna("").astype(str)
    return found


def footnotes(groups: Sequence[Group], summary: pd.DataFrame) -> list[str]:
    """Return the notes that apply to the tables, one sentence each."""
    notes = ["Mean ± sample standard deviation over n runs that differ only in their seed."]
    if summary["low"].notna().any():
        notes.append("[ ]: the 95 % confidence interval of the mean, by Student's t.")
    if summary["best"].ne("").any():
        notes += [
            f"{BEST} The best mean; {BEST_OF_METHOD} the best of its method.",
            "p: t test of the two best, paired by seed or Welch's, not corrected for choosing them among several.",
        ]
    if summary["worse"].eq(True).any():
        notes.append(f"{WORSE} The mean is worse than the published number (↑ higher is better, ↓ lower is better).")
    notes += [f"{UNLIKE} Not comparable: {differs}." for differs in summary["differs"].unique() if differs]
    if sources := [source for source in summary["source"].unique() if source]:
        notes.append(f"Published: {'; '.join(sources)}.")
    if summary["metric"].str.endswith(LAST).any():
        notes.append(f"{LAST.strip()}: mean of the last three validations of each run.")
    repeated = [group for group in groups if len({run.config.get("seed") for run in group.runs}) < len(group.runs)]
    return notes + [
        f"Runs of {group.data}, {group.label} have the same seed: their spread is too small." for group in repeated
    ]


def to_markdown(by_data: Mapping[str, pd.DataFrame], notes: Sequence[str]) -> str:
    """Format the tables, followed by the notes, in GitHub's Markdown.

    Example:
        >>> print(to_markdown({"digits": pd.DataFrame({"method": ["dsm"], "n": ["3"]})}, ["A note."]))
        ## digits
        <BLANKLINE>
        | method | n |
        | --- | ---: |
        | dsm | 3 |
        <BLANKLINE>
        A note.
        <BLANKLINE>
    """
    parts = []
    for data, table in by_data.items():
        lines = [list(table), ["---", *["---:"] * (table.shape[1] - 1)], *table.to_numpy().tolist()]
        parts += [f"## {_literal(data)}", "\n".join(f"| {' | '.join(map(_literal, line))} |" for line in lines)]
    return "\n\n".join([*parts, *map(_literal, notes)]) + "\n"


def _literal(text: str) -> str:
    r"""Escape a text so that Markdown shows ``|``, ``*``, ``[...](...)`` and HTML in it literally.

    Example:
        >>> print(_literal("a|b *c* <d>[e](f)"))
        a\|b \*c\* &lt;d&gt;[e]\(f)
    """
    return re.sub(r"[|*`\\]|(?<=\])\(", r"\\\g<0>", escape(text, quote=False)).replace("\n", "<br>")


def show(by_data: Mapping[str, pd.DataFrame], notes: Sequence[str]) -> None:
    """Print the tables, with as many columns as fit into the width of the terminal, and the notes."""
    console = Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal:  # the output goes to a file, whose width is unlimited
        console.width = 10**4
    endless = console.options.update(width=10**4)
    for data, table in by_data.items():
        shown = _rich_table(data, table)
        whole = table.shape[1]
        while table.shape[1] > 3 and console.measure(shown, options=endless).minimum > console.width:
            table = table.iloc[:, :-1]
            shown = _rich_table(data, table)
        console.print(shown)
        if table.shape[1] < whole:
            console.print("For more columns widen the terminal, or name them by --metric; table.md has all.")
        console.print()
    for note in notes:
        console.print(note, soft_wrap=True)


def _rich_table(title: str, table: pd.DataFrame) -> Table:
    shown = Table(title=Text(title, style="bold"), title_justify="left", box=SIMPLE_HEAD, show_edge=False)
    for name in table:
        own = {"overflow": "fold"} if name in LABELS else {"justify": "right", "no_wrap": True}
        shown.add_column(Text(name.replace("/", "/\n", 1)), **own)
    for line in table.to_numpy():
        shown.add_row(*map(Text, line))
    return shown
