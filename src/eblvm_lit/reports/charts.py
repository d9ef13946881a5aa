"""The figures of a report: validation curves, quality against cost, and heat maps over two swept settings."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from eblvm_lit.figures.style import COLOURS, DASHES, MARKERS, fit_axis, new_figure, open_frame, save, styled_text
from eblvm_lit.reports.comparison import interval
from eblvm_lit.reports.runs import SECONDS, Group, setting_name
from eblvm_lit.reports.table import ARROWS, summarise
from eblvm_lit.utils.incidental import LENGTH_AND_TESTS, is_incidental
from eblvm_lit.utils.quantities import direction

__all__ = ["Grid", "draw", "draw_costs", "draw_curves", "draw_grid", "find_grids", "mean_curve"]

MEMORY = "train/peak_memory_mib"
QUALITIES = (
    *("test/log_likelihood", "test/kl", "test/fisher", "test/fid", "test/fd_classifier"),
    "val/hypergradient_error",
)


def draw(groups: Sequence[Group], metrics: Sequence[str], folder: Path) -> dict[str, dict[Path, str]]:
    """Draw all figures of a report, and save each as PNG and PDF.

    Args:
        groups: The groups of runs of all data sets.
        metrics: The metrics that get heat maps.
        folder: The output folder.

    Returns:
        A dictionary from headings to dictionaries from PNG files to captions.
    """
    found: dict[str, dict[Path, str]] = {"Heat maps": {}, "Curves": {}, "Cost": {}}

    def keep(heading: str, figure: Figure, caption: str, *names: str) -> None:
        stem = folder / re.sub(r"[^\w-]+", "_", "_".join(name[:100] for name in names)).strip("_")
        found[heading][save(figure, stem, ("png", "pdf"), dpi=300)[0]] = caption

    for i, grid in enumerate(find_grids(groups)):
        for metric in metrics:
            if any(group.pooled(metric).count() for group in grid.cells.values()):
                title = f"{metric} of {grid.title}"
                keep("Heat maps", draw_grid(grid, metric), title, grid.data, metric, "heat", str(i))
    validated = {name for group in groups for run in group.runs for name in run.curves if name.startswith("val/")}
    for data in dict.fromkeys(group.data for group in groups):
        of_data = [group for group in groups if group.data == data]
        for metric in sorted(validated, key=lambda name: (name != "val/log_likelihood", name)):
            if any(len(mean_curve(group, metric)) > 1 for group in of_data):
                keep("Curves", draw_curves(of_data, metric), f"{data}: {metric} by iteration", data, metric)
        for metric in QUALITIES:
            if len(costs(of_data, metric)) > 1:
                keep("Cost", draw_costs(of_data, metric), f"{data}: {metric} against cost", data, metric, "cost")
    return found


def mean_curve(group: Group, metric: str) -> pd.DataFrame:
    """Compute the mean and the standard deviation of a metric over the runs of a group.

    Args:
        group: The group of runs.
        metric: The name of the metric.

    Returns:
        A table with the columns ``mean`` and ``std``, indexed by the iterations at which all runs with this metric
        have a value.
    """
    curves = [run.curves[metric].dropna() for run in group.runs if metric in run.curves]
    values = pd.concat(curves, axis="columns", join="inner") if curves else pd.DataFrame()
    return pd.DataFrame({"mean": values.mean(axis="columns"), "std": values.std(axis="columns")})


@styled_text
def draw_curves(groups: Sequence[Group], metric: str) -> Figure:
    """Draw the mean curve of each group with a band of one standard deviation over its seeds."""
    figure = new_figure(4.4, 3.0)
    axes = figure.subplots()
    open_frame(axes, groups[0].data.replace("_", " "))
    for i, group in enumerate(groups):  # the index i gives a group the same colour and dash in all figures
        curve = mean_curve(group, metric)
        colour = COLOURS[i % len(COLOURS)]
        if len(curve) > 1:
            axes.plot(curve.index, curve["mean"], color=colour, linestyle=DASHES[i % len(DASHES)], label=_words(group))
            low = curve["mean"] - curve["std"]
            high = curve["mean"] + curve["std"]
            axes.fill_between(curve.index, low, high, color=colour, alpha=0.16, linewidth=0)
    fit_axis(axes.yaxis, np.concatenate([line.get_ydata() for line in axes.lines]), n_ticks=6)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set(xlabel="iteration", ylabel=_title(metric))
    _legend(axes)
    return figure


def costs(groups: Sequence[Group], metric: str) -> pd.DataFrame:
    """Compute the mean of a metric, and the mean time and memory of training, over the runs of each group.

    Args:
        groups: The groups of one data set.
        metric: The metric that measures quality.

    Returns:
        A table indexed by the position of the group in ``groups``, with the columns ``quality``, its confidence
        interval ``low`` and ``high``, ``seconds`` of training, ``memory`` in MiB, and ``front``: true on the Pareto
        front, where no other group reaches a better quality in as few seconds.
    """
    sources = {"quality": metric, "seconds": SECONDS, "memory": MEMORY}
    points = pd.DataFrame({name: [group.pooled(key).mean() for group in groups] for name, key in sources.items()})
    points[["low", "high"]] = [interval(group.pooled(metric)) for group in groups]
    points = points.dropna(subset=["quality", "seconds"]).sort_values("seconds")
    gain = direction(metric) * points["quality"]
    return points.assign(front=gain > gain.cummax().shift(fill_value=-math.inf))


@styled_text
def draw_costs(groups: Sequence[Group], metric: str) -> Figure:
    """Plot a metric with confidence intervals and the Pareto front against time and, if measured, against memory."""
    points = costs(groups, metric)
    panels = {"seconds": "seconds of training", "memory": "memory of an iteration, MiB"}
    panels = {column: label for column, label in panels.items() if points[column].notna().any()}
    figure = new_figure(4.0 * len(panels), 3.4)
    all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (column, label) in zip(all_axes, panels.items(), strict=True):
        open_frame(axes, groups[0].data.replace("_", " "), grid="both")
        for i, point in points.iterrows():
            look = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[(i + i // len(COLOURS)) % len(MARKERS)]}
            axes.scatter(point[column], point["quality"], s=26, zorder=3, label=_words(groups[i]), **look)
        fit_axis(axes.xaxis, points[column], ratio=8.0)
        fit_axis(axes.yaxis, points["quality"], n_ticks=6)
        limits = axes.get_ylim()
        colours = [COLOURS[i % len(COLOURS)] for i in points.index]
        axes.vlines(points[column], points["low"], points["high"], colours, linewidth=0.8)
        axes.set(xlabel=label, ylim=limits)  # keep the limits: confidence intervals from only two seeds can be huge
    front = points[points["front"]]
    all_axes[0].step(front["seconds"], front["quality"], "-", where="post", color="0.5", lw=0.8, label="Pareto front")
    all_axes[0].set_ylabel(f"{_title(metric)}{ARROWS[direction(metric)]}")
    _legend(all_axes[-1])
    return figure


def _title(metric: str) -> str:
    split, _, name = metric.partition("/")
    return f"{'validation' if split == 'val' else split} {name.replace('_', ' ')}"


def _words(group: Group) -> str:
    return f"{group.label} (n = {len(group.runs)})" if len(group.runs) > 1 else group.label


def _legend(axes: Axes) -> None:
    """Place the legend of the figure's first panel to the right of the given axes, without shrinking the axes."""
    handles, labels = axes.figure.axes[0].get_legend_handles_labels()
    wrapped = ["\n".join(textwrap.wrap(label, 44, subsequent_indent="   ")) for label in labels]
    legend = axes.legend(handles, wrapped, loc="center left", bbox_to_anchor=(1.01, 0.5), handlelength=2.6)
    legend.set_in_layout(False)


class Grid:
    """The cells of a heat map, each of which is a group of runs with one pair of values of two settings of a method.

    Args:
        cells: The groups by the pair of the two settings' values.
        rows: The key of the setting that differs between rows.
        columns: The key of the setting that differs between columns.
    """

    def __init__(self, cells: dict[tuple[float, float], Group], rows: str, columns: str) -> None:
        self.cells = cells
        self.rows = rows
        self.columns = columns
        group = next(iter(cells.values()))
        fixed = [group.text(key) for key in group.keys if key not in (rows, columns)]
        self.data = group.data
        self.title = ", ".join([group.data, group.method, *fixed])


def find_grids(groups: Sequence[Group]) -> Iterator[Grid]:
    """Find sweeps over two numeric settings of a method, such as N and K of BiSM (Bao et al. 2020, Table 3).

    If more than two numeric settings differ, the two with the most values span the grids, and there is one grid for
    each combination of the others. A grid of which at most half the cells are filled is left out, for example that of a
    sweep that changes one setting at a time. Settings of the data, of the length of a run and of its tests do not
    count.
    """
    for data, method in dict.fromkeys((group.data, group.method) for group in groups):
        rivals = [group for group in groups if (group.data, group.method) == (data, method)]
        keys = dict.fromkeys(key for group in rivals for key in group.keys)
        values = {
            key: {group.value(key) for group in rivals}
            for key in keys
            if not is_incidental(key, "data", *LENGTH_AND_TESTS)
        }
        swept = {key: len(found) for key, found in values.items() if len(found) > 1 and all(map(_is_number, found))}
        if len(swept) < 2:
            continue
        rows, columns = sorted(sorted(swept, key=swept.get, reverse=True)[:2], key=list(keys).index)
        by_rest: dict[Any, dict[tuple[float, float], Group]] = {}
        for group in rivals:
            rest = tuple(group.value(key) for key in keys if key not in (rows, columns))
            by_rest.setdefault(rest, {})[group.value(rows), group.value(columns)] = group
        for cells in by_rest.values():
            n_rows, n_columns = (len({place[i] for place in cells}) for i in range(2))
            if min(n_rows, n_columns) > 1 and 2 * len(cells) > n_rows * n_columns:
                yield Grid(cells, rows, columns)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@styled_text
def draw_grid(grid: Grid, metric: str) -> Figure:
    """Draw a heat map of a metric over a grid, with the values written in its cells; brighter is better."""
    summary = summarise(list(grid.cells.values()), [metric]).set_index("group")
    places = pd.MultiIndex.from_tuples(grid.cells)
    means, texts = (
        pd.Series(summary[name].reindex(range(len(places))).to_numpy(), places).unstack() for name in ("mean", "text")
    )
    figure = new_figure(1.4 + 1.15 * means.shape[1], 1.0 + 0.5 * means.shape[0])
    axes = figure.subplots()
    colours = matplotlib.colormaps["viridis_r" if direction(metric) < 0 else "viridis"]
    image = axes.imshow(np.ma.masked_invalid(means), cmap=colours, aspect="auto")
    for y, x in np.argwhere(means.notna().to_numpy()):
        luminance = np.dot(image.to_rgba(means.iloc[y, x])[:3], (0.2126, 0.7152, 0.0722))
        text = texts.iloc[y, x].replace(" (", "\n(")
        colour = "black" if luminance > 0.45 else "white"
        axes.annotate(text, (x, y), ha="center", va="center", fontsize=7, color=colour)
    axes.set_title(f"{metric}{ARROWS[direction(metric)]}\n{grid.title}")
    axes.set_xticks(range(means.shape[1]), [f"{value:g}" for value in means.columns])
    axes.set_yticks(range(means.shape[0]), [f"{value:g}" for value in means.index])
    axes.set(xlabel=setting_name(grid.columns), ylabel=setting_name(grid.rows))
    axes.tick_params(length=0)
    return figure
