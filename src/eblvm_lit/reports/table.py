"""The tables of a report: mean and standard deviation of each metric over seeds, beside the published number."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from eblvm_lit.errors import ConfigError
from eblvm_lit.reports.groups import Group
from eblvm_lit.reports.published import direction, find_published
from eblvm_lit.reports.runs import LAST, SPEED, Run
from eblvm_lit.utils.printing import printable

__all__ = ["choose_metrics", "footnotes", "is_worse", "summarise", "tables", "to_csv", "to_markdown"]

WORSE, UNLIKE = "†", "‡"
NAMED = 3  # rows that a footnote names; of more it says how many
ARROWS = {1: " ↑", -1: " ↓", 0: ""}
CSV_COLUMNS = ["data", "method", "settings", "metric", "mean", "std", "n", "published", "worse", "source", "differs"]


def summarise(groups: Sequence[Group], metrics: Sequence[str]) -> pd.DataFrame:
    """Aggregate each metric over the runs of each group.

    Args:
        groups: The groups of runs.
        metrics: Names of metrics.

    Returns:
        One row per group and metric, in this order. The columns are those of ``table.csv``, the number of the
        ``group``, and the ``text`` that readers see. ``std`` is the sample standard deviation (divided by n − 1).
    """
    keys = ["group", "data", "method", "settings", "metric"]
    values = [
        (i, group.data, group.method, ", ".join(group.settings), metric, run.metrics.get(metric, math.nan))
        for i, group in enumerate(groups)
        for metric in metrics
        for run in group.runs
    ]
    by_metric = pd.DataFrame(values, columns=[*keys, "value"]).groupby(keys, sort=False)["value"]
    table = by_metric.agg(["mean", "std", "count", "size"]).reset_index().rename(columns={"count": "n"})
    published = [find_published(group.config) for group in groups]
    found = [published[i].get(metric) for i, metric in zip(table["group"], table["metric"], strict=True)]
    table["published"] = [math.nan if number is None else number.value for number in found]
    table["source"] = [None if number is None else number.source for number in found]
    table["differs"] = [None if number is None else number.differs or None for number in found]
    compared = table["published"].where(table["differs"].isna())
    worse = [is_worse(*row) for row in zip(table["metric"], table["mean"], compared, strict=True)]
    table["worse"] = pd.Series(worse, dtype=object)
    table["text"] = [_text(row.mean, row.std, row.n, row.size, row.worse) for row in table.itertuples()]
    return table


def is_worse(metric: str, mean: float, published: float) -> bool | None:
    """Whether a mean is worse than the published number; None if either is NaN or the metric has no direction."""
    if math.isnan(mean) or math.isnan(published) or not direction(metric):
        return None
    return direction(metric) * (mean - published) < 0


def _text(mean: float, std: float, n: int, n_runs: int, worse: bool | None) -> str:
    """Mean ± standard deviation, the mark, and the number of runs that have the metric if not all have it.

    Example:
        >>> _text(-5881.0, 2**0.5, n=2, n_runs=3, worse=True)
        '-5881.0 ± 1.4 † (n = 2)'
    """
    if n == 0:
        return ""
    return f"{_spread(mean, std)}{f' {WORSE}' * bool(worse)}{f' (n = {n})' * (n < n_runs)}"


def _spread(mean: float, std: float) -> str:
    if math.isnan(std):
        return _number(mean)
    if std == 0 or not math.isfinite(std):  # numbers near the largest float have no finite spread
        return f"{_number(mean)} ± {std:.0f}"
    decimals = min(6, max(0, 1 - math.floor(math.log10(std))))  # two digits of the standard deviation
    return f"{mean:.{decimals}f} ± {std:.{decimals}f}"


def _number(value: float) -> str:
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.4g}"


def choose_metrics(groups: Iterable[Group], names: Sequence[str] = ()) -> list[str]:
    """The columns of the table.

    Args:
        groups: The rows of the table.
        names: The requested metrics; if none, all metrics of the test split, the mean of the last three validations
            of the log-likelihood, and the iteration rate.

    Returns:
        The names in the requested order; otherwise those where higher is better first, then those where lower is.

    Raises:
        ConfigError: If no run has a requested metric.
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


def tables(groups: Sequence[Group], summary: pd.DataFrame) -> dict[str, list[list[str]]]:
    """One table per data set for readers, as text.

    Args:
        groups: The groups, one per row.
        summary: Their metrics, as :func:`summarise` returns them.

    Returns:
        A header and the rows by data set, with the metrics that a group of it has. A column of published numbers
        follows each metric that has any.
    """
    found = {}
    for data in dict.fromkeys(group.data for group in groups):
        rows = {i: group for i, group in enumerate(groups) if group.data == data}
        keys = [(group.label, str(len(group.runs))) for group in rows.values()]
        table = pd.DataFrame(keys, columns=["method", "n"], index=list(rows))
        for metric, cells in summary[summary["group"].isin(rows) & (summary["n"] > 0)].groupby("metric", sort=False):
            cells = cells.set_index("group")
            table[f"{metric}{ARROWS[direction(metric)]}"] = cells["text"].reindex(table.index, fill_value="")
            if cells["published"].notna().any():
                table.insert(len(table.columns), "published", _published(cells, table.index), allow_duplicates=True)
        found[data] = [list(table), *table.to_numpy().tolist()]
    return found


def _published(cells: pd.DataFrame, rows: pd.Index) -> pd.Series:
    numbers = cells["published"].map(_number, na_action="ignore").fillna("")
    marks = cells["differs"].notna().map({True: f" {UNLIKE}", False: ""})
    return (numbers + marks).reindex(rows, fill_value="")


def footnotes(groups: Sequence[Group], summary: pd.DataFrame) -> list[str]:
    """The notes below the tables, one sentence each."""
    notes = ["Mean ± sample standard deviation over n runs that differ in their seed alone."]
    if summary["worse"].eq(True).any():
        notes.append(f"{WORSE} The mean is worse than the published number (↑ higher is better, ↓ lower is better).")
    unlike = summary[(summary["n"] > 0) & summary["differs"].notna()]
    for differs, cells in unlike.groupby("differs", sort=False):
        notes.append(f"{UNLIKE} Not comparable: {differs} ({_rows(groups[i] for i in cells['group'].unique())}).")
    notes += _estimators(groups, summary)
    if len(sources := summary["source"].dropna().unique()):
        notes.append(f"Published: {'; '.join(sources)}.")
    if summary["metric"].str.endswith(LAST).any():
        notes.append(f"{LAST.strip()}: mean of the last three validations of each run.")
    if repeated := [group for group in groups if group.repeats_a_seed]:
        notes.append(f"Some runs have the same seed, so that their spread is too small: {_rows(repeated)}.")
    return notes


def _estimators(groups: Sequence[Group], summary: pd.DataFrame) -> list[str]:
    """One sentence for each metric that runs say they have computed in one of several ways."""
    ways: dict[str, dict[str, list[Group]]] = {}
    for metric in summary.loc[summary["n"] > 0, "metric"].unique():
        name = metric.removesuffix(LAST).rpartition("/")[2]
        for group in groups:
            for how in {how for run in group.runs if (how := _estimator(run, name))}:
                ways.setdefault(name, {}).setdefault(how, []).append(group)
    return [
        f"{name}: {'; '.join(f'{how} ({_rows(of)})' if len(by_how) > 1 else how for how, of in by_how.items())}."
        for name, by_how in ways.items()
    ]


def _estimator(run: Run, name: str) -> str:
    """What the status of a run says of a metric; empty if it says nothing."""
    estimators = run.status.get("estimators")
    return printable(estimators.get(name, "")) if isinstance(estimators, Mapping) else ""


def _rows(groups: Iterable[Group]) -> str:
    labels = [f"{group.data}, {group.label}" for group in groups]
    return "; ".join(labels) if len(labels) <= NAMED else f"{len(labels)} rows"


def to_markdown(tables: Mapping[str, Sequence[Sequence[str]]], notes: Iterable[str], folded: Sequence[str] = ()) -> str:
    """One table per data set in GitHub's Markdown, followed by the notes and a folded list.

    Args:
        tables: As :func:`tables` returns them.
        notes: One paragraph each.
        folded: The summary of the list, and its items.

    Example:
        >>> table = [["method", "n"], ["dsm", "3"]]
        >>> print(to_markdown({"digits": table}, ["A note."], ["1 run without results.", "multirun/3: failed."]))
        ## digits
        <BLANKLINE>
        | method | n |
        | --- | ---: |
        | dsm | 3 |
        <BLANKLINE>
        A note.
        <BLANKLINE>
        <details><summary>1 run without results.</summary>
        <BLANKLINE>
        - multirun/3: failed.
        <BLANKLINE>
        </details>
        <BLANKLINE>
    """
    parts = [f"## {data}\n\n{_to_markdown(table)}" for data, table in tables.items()] + list(notes)
    if folded:
        items = "\n".join(f"- {html.escape(item)}" for item in folded[1:])
        parts += [f"<details><summary>{folded[0]}</summary>", items, "</details>"]
    return "\n\n".join(parts) + "\n"


def _to_markdown(table: Sequence[Sequence[str]]) -> str:
    header, *body = ([cell.replace("|", r"\|") for cell in line] for line in table)
    rule = ["---" if i < 1 else "---:" for i in range(len(header))]
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *body))


def to_csv(summary: pd.DataFrame) -> str:
    """One line per group and metric, with all digits; a missing number is an empty cell."""
    return summary.to_csv(columns=CSV_COLUMNS, index=False, lineterminator="\n")
