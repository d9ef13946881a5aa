"""The table of outlier sets: the AUROC of each method for all sets of out-of-distribution examples."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from eblvm_lit.reports.groups import Group
from eblvm_lit.reports.table import ARROWS

__all__ = ["OUTLIERS", "outlier_tables"]

PREFIX = "test/auroc_"
OUTLIERS = "AUROC of outlier sets"


def outlier_tables(groups: Sequence[Group], summary: pd.DataFrame) -> dict[str, list[list[str]]]:
    """One table per data set with a row for each method and a column for each of its outlier sets.

    The last column is the mean over the sets, of rows that have them all: other means could not be compared.

    Args:
        groups: The groups, one per row.
        summary: Their metrics, as :func:`~eblvm_lit.reports.table.summarise` returns them.

    Returns:
        A header and the rows by title, of data for which more than one set was evaluated.
    """
    cells = summary[summary["metric"].str.startswith(PREFIX) & (summary["n"] > 0)]
    found = {}
    for data, of_data in cells.groupby("data", sort=False):
        values, texts = (of_data.pivot(index="group", columns="metric", values=name) for name in ("mean", "text"))
        if values.shape[1] < 2:
            continue
        means = values.mean(axis=1, skipna=False)
        names = [f"{metric.removeprefix(PREFIX)}{ARROWS[1]}" for metric in values]
        rows = [
            [groups[i].label, str(len(groups[i].runs)), *texts.loc[i].fillna(""), _text(means[i])]
            for i in sorted(values.index)
        ]
        found[f"{data}: {OUTLIERS}"] = [["method", "n", *names, f"mean{ARROWS[1]}"], *rows]
    return found


def _text(mean: float) -> str:
    return "" if math.isnan(mean) else f"{mean:.4g}"
