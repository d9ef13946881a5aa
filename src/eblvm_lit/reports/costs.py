"""Scatter plots of a final metric against computing time and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from eblvm_lit.figures.base import INK, TICK_STEPS, frame, new_figure
from eblvm_lit.reports.groups import Group
from eblvm_lit.reports.method_curves import COLOURS, WORDS, beside, save_figure, stem_of
from eblvm_lit.reports.runs import SPEED

__all__ = ["Cost", "cost", "draw_costs", "draw_costs_of_data"]

MEMORY = "train/peak_memory_mib"
QUALITIES = ("test/log_likelihood", "test/fisher")


@dataclass(frozen=True)
class Cost:
    """The point of one group.

    Attributes:
        method: The method, which determines the colour.
        label: The method and its settings.
        quality: The final metric, averaged over runs.
        seconds: Seconds per 100 iterations, averaged over runs.
        memory: Peak memory in MiB, averaged over runs; None if it was not measured.
    """

    method: str
    label: str
    quality: float
    seconds: float
    memory: float | None


def cost(group: Group, metric: str) -> Cost | None:
    """The point of a group; None if no run has both the metric and the iteration rate."""
    runs = [run.metrics for run in group.runs if metric in run.metrics and SPEED in run.metrics]
    if not runs:
        return None
    memory = [run[MEMORY] for run in runs if MEMORY in run]
    return Cost(
        method=group.method,
        label=group.label,
        quality=fmean(run[metric] for run in runs),
        seconds=fmean(100 / run[SPEED] for run in runs),
        memory=fmean(memory) if memory else None,
    )


def draw_costs(groups: Sequence[Group], folder: Path) -> list[Path]:
    """Draw one figure per data set and metric, as PNG and PDF, if at least two groups have a point.

    Args:
        groups: The groups of all data sets.
        folder: The output folder.

    Returns:
        The written files.
    """
    paths = []
    for metric in QUALITIES:
        for data in dict.fromkeys(group.data for group in groups):
            points = [point for group in groups if group.data == data and (point := cost(group, metric))]
            if len(points) > 1:
                stem = stem_of(folder, data, metric, "cost")
                paths += save_figure(draw_costs_of_data(points, data, metric), stem)
    return paths


def draw_costs_of_data(points: Sequence[Cost], data: str, metric: str) -> Figure:
    """Draw a metric against time and, if it was measured, against memory.

    Args:
        points: One per group.
        data: Name of the data set.
        metric: Name of the metric.
    """
    panels = [("seconds", "seconds per 100 iterations")]
    if any(point.memory is not None for point in points):
        panels.append(("memory", "memory of an iteration, MiB"))
    figure = new_figure(3.6 * len(panels), 3.2)
    methods = list(dict.fromkeys(point.method for point in points))
    colours = [COLOURS[methods.index(point.method) % len(COLOURS)] for point in points]
    all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (attribute, label) in zip(all_axes, panels, strict=True):
        _prepare(axes, label)
        for number, (point, colour) in enumerate(zip(points, colours, strict=True), start=1):
            if (x := getattr(point, attribute)) is not None:
                axes.scatter(x, point.quality, s=26, color=colour, zorder=3)
                where = {"xytext": (4, 4), "textcoords": "offset points"}
                axes.annotate(str(number), (x, point.quality), **where, fontsize=8, color=INK)
    name = metric.split("/")[-1]
    all_axes[0].set_ylabel(f"{data.replace('_', ' ')}: test {WORDS.get(name, name)}", color=INK, fontsize=9)
    dots = [Line2D([], [], linestyle="", marker="o", markersize=5, color=colour) for colour in colours]
    beside(all_axes[-1], dots, [f"{number}  {point.label}" for number, point in enumerate(points, start=1)])
    return figure


def _prepare(axes: Axes, label: str) -> None:
    frame(axes, "")
    axes.margins(0.1)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e2e8f0", linewidth=0.6)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=TICK_STEPS))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=TICK_STEPS))
    axes.set_xlabel(label, color=INK, fontsize=9)
