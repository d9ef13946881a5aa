"""Confidence intervals of means over runs, and statistical tests of the difference between the two best settings."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import pandas as pd
from scipy import stats

from eblvm_lit.reports.runs import Group
from eblvm_lit.utils.quantities import direction

__all__ = ["compare", "difference", "interval"]


def interval(values: pd.Series) -> tuple[float, float]:
    """Compute the 95 % confidence interval of a mean by Student's t distribution; NaN for fewer than two values.

    Example:
        >>> [round(float(bound), 2) for bound in interval(pd.Series([1.0, 2.0, 6.0]))]  # 3 ± 4.303 sqrt(7 / 3)
        [-3.57, 9.57]
    """
    half = stats.t.ppf(0.975, values.count() - 1) * values.sem()
    return values.mean() - half, values.mean() + half


def difference(a: pd.Series, b: pd.Series) -> tuple[float, float, float, float, str]:
    """Test the difference between the means of ``a`` and ``b`` by Student's paired t test or Welch's t test.

    The test is paired if all seeds of one series are also seeds of the other series.

    Args:
        a: Values of a metric with one setting, indexed by seed.
        b: Values of the metric with another setting, indexed by seed.

    Returns:
        The mean of ``a`` minus the mean of ``b``; the lower and the upper bound of its 95 % confidence interval; the p
        value under the hypothesis of no difference; and the name of the test.

    Example:
        >>> value, low, high, p, test = difference(pd.Series([1.0, 2.0, 3.0]), pd.Series([0.5, 1.0, 1.5]))
        >>> value, round(low, 2), round(high, 2), round(p, 3), test
        (1.0, -0.24, 2.24, 0.074, 'paired, n = 3')
    """
    a, b = (values.dropna().groupby(level=0).mean() for values in (a, b))
    pairs = (a - b).dropna()
    paired = len(pairs) == min(len(a), len(b))
    # scipy would warn about a single value or equal values, for which the test has no p value
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        result = stats.ttest_1samp(pairs, 0.0) if paired else stats.ttest_ind(a, b, equal_var=False)
        low, high = result.confidence_interval(0.95)
    value = pairs.mean() if paired else a.mean() - b.mean()
    test = f"paired, n = {len(pairs)}" if paired else f"Welch, n = {len(a)}, {len(b)}"
    return float(value), float(low), float(high), float(result.pvalue), test


def compare(groups: Sequence[Group], summary: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Compare the two best settings for each metric on each data set.

    If there are several methods, the two settings are the best settings of the two best methods; if there is only one
    method, they are its two best settings.

    Args:
        groups: The groups of runs of all data sets.
        summary: The table that :func:`~eblvm_lit.reports.table.summarise` returns.

    Returns:
        For each data set a title and a table of texts: the two best settings by metric, their difference and its test.
    """
    found: dict[str, list[list[str]]] = {}
    for (data, metric), cells in summary.groupby(["data", "metric"], sort=False):
        ranked = cells.sort_values("mean", ascending=direction(metric) < 0)
        methods = ranked.drop_duplicates("method")
        best = [groups[i] for i in (methods if len(methods) > 1 else ranked)["group"][:2]]
        if direction(metric) and len(best) > 1:
            value, low, high, p, test = difference(*(group.pooled(metric) for group in best))
            numbers = (f"{value:.4g}\n[{low:.4g}, {high:.4g}]", f"{p:.2g}") if p == p else (f"{value:.4g}", "")
            found.setdefault(data, []).append([metric, *(group.label for group in best), *numbers, test])
    columns = ["metric", "best", "second", "difference", "p", "test"]
    return {f"{data}: the two best": pd.DataFrame(rows, columns=columns) for data, rows in found.items()}
