"""Scatter plots of a final metric against computing time and memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from eblvm_lit.evaluation.directions import direction
from eblvm_lit.figures.label_placement import place_labels
from eblvm_lit.figures.style import COLOURS, INK, MARKERS, fit_axis, new_figure, open_frame, styled_text
from eblvm_lit.reports.groups import Group
from eblvm_lit.reports.method_curves import LARGEST, WORDS, fill, first_figures, save_figure, stem_of
from eblvm_lit.reports.runs import SPEED

__all__ = ["Cost", "cost", "draw_costs", "draw_costs_of_data"]

MEMORY = "train/peak_memory_mib"
QUALITIES = ("test/log_likelihood", "test/kl", "test/fisher", "test/fd_classifier", "val/hypergradient_error")
WIDE = 8.0  # costs that span a larger ratio get a logarithmic axis
MOST_NAMED = 16  # points of a panel
HYPERGRADIENT = "hypergradient"
LINE = 26  # characters of a name
LETTERS = {"n_unroll": "N", "n_lower_steps": "K", "score.n_particles": "L", "n_particles": "L", "h_dim": "latents"}


@dataclass(frozen=True)
class Cost:
    """The point of one group.

    Attributes:
        method: The method; with the hypergradient where runs differ in it, it determines the colour.
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
    """The point of a group; None if no run has both the metric and an iteration rate, or one is beyond drawing."""
    runs = [run.metrics for run in group.runs if metric in run.metrics and run.metrics.get(SPEED, 0) > 0]
    if not runs:
        return None
    memory = [run[MEMORY] for run in runs if MEMORY in run]
    point = Cost(
        method=group.method,
        label=group.label,
        quality=fmean(run[metric] for run in runs),
        seconds=fmean(100 / run[SPEED] for run in runs),
        memory=fmean(memory) if memory else None,
    )
    drawn = all(abs(number) < LARGEST for number in (point.quality, point.seconds, point.memory or 0.0))
    return point if drawn else None


def draw_costs(groups: Sequence[Group], folder: Path) -> list[Path]:
    """Draw one figure per data set and metric, as PNG and PDF, if at least two groups have a point.

    Args:
        groups: The groups of all data sets.
        folder: The output folder.

    Returns:
        The written files.
    """
    wanted = []
    for metric in QUALITIES:
        for data in dict.fromkeys(group.data for group in groups):
            points = [point for group in groups if group.data == data and (point := cost(group, metric))]
            if len(points) > 1:
                wanted.append((points, data, metric))
    paths = []
    for points, data, metric in first_figures(wanted, "costs"):
        paths += save_figure(draw_costs_of_data(points, data, metric), stem_of(folder, data, metric, "cost"))
    return paths


@styled_text
def draw_costs_of_data(points: Sequence[Cost], data: str, metric: str) -> Figure:
    """Draw a metric against time and, if it was measured, against memory.

    Each point is named by its method and settings. A line joins the Pareto front: the points that no other point beats
    in both the metric and the cost. Of many points, those alone are named.

    Args:
        points: One per group.
        data: Name of the data set.
        metric: Name of the metric.
    """
    panels = [("seconds", "seconds per 100 iterations")]
    if any(point.memory is not None for point in points):
        panels.append(("memory", "memory of an iteration, MiB"))
    figure = new_figure(4.4 * len(panels), 3.8)
    all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    name = metric.split("/")[-1]
    split = {"val": "validation"}.get(metric.split("/")[0], "test")
    all_axes[0].set_ylabel(f"{data.replace('_', ' ')}: {split} {WORDS.get(name, name.replace('_', ' '))}")
    kinds = list(dict.fromkeys(_kind(point) for point in points))
    measured = {attribute: [p for p in points if getattr(p, attribute) is not None] for attribute, _ in panels}
    for axes, (attribute, label) in zip(all_axes, panels, strict=True):
        xs, ys = [getattr(p, attribute) for p in measured[attribute]], [p.quality for p in measured[attribute]]
        _prepare(axes, label, xs, ys)
        for x, point in zip(xs, measured[attribute], strict=True):
            i = kinds.index(_kind(point))
            look = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)]}
            axes.scatter(x, point.quality, s=26, zorder=3, **look)
    for axes, (attribute, _) in zip(all_axes, panels, strict=True):  # when all points are there, the axes stay
        places = [(getattr(p, attribute), p.quality, words_of(p)) for p in measured[attribute]]
        front = sorted(_unbeaten(places, direction(metric) or 1))
        axes.plot(*zip(*[place[:2] for place in front], strict=True), color=INK, alpha=0.35, lw=1, ls="-", marker="")
        named = places if len(places) <= MOST_NAMED else front[:MOST_NAMED]
        place_labels(axes, [place[:2] for place in places], named)
    return figure


def words_of(point: Cost) -> str:
    """The name of a point, in lines of about 26 characters.

    Example:
        >>> point = Cost("bidsm", "bidsm, n_lower_steps=1, n_unroll=5", 120.1, 3.2, None)
        >>> words_of(point), words_of(Cost("dsm", "dsm", 129.5, 0.3, None))
        ('BiDSM K = 1, N = 5', 'DSM')
        >>> words_of(Cost("bidsm", "bidsm, hypergradient=fixed_point, n_steps=2", 129.7, 1.2, None))
        'fixed point, n_steps = 2'
    """
    settings = [part.split("=", 1) for part in point.label.split(", ")[1:]]
    kinds = [value[0].replace("_", " ") for key, *value in settings if key == HYPERGRADIENT]
    settings = [part for part in settings if part[0] != HYPERGRADIENT]
    words = [f"{LETTERS.get(key, key.split('.')[-1])} = {value[0]}" if value else key for key, *value in settings]
    if kinds:
        return fill(", ".join(kinds + words), LINE)
    return fill(" ".join(filter(None, [title_of(point.method), ", ".join(words)])), LINE)


def _kind(point: Cost) -> str:
    """What determines the colour."""
    own = [part for part in point.label.split(", ") if part.startswith(f"{HYPERGRADIENT}=")]
    return ", ".join([point.method, *own])


def title_of(method: str) -> str:
    """The name of a method as its paper writes it.

    Example:
        >>> [title_of(method) for method in ("bimdsm", "vages_ksd", "is_dsm", "score_matching", "BiSM DSM")]
        ['BiMDSM', 'VaGES-KSD', 'IS-DSM', 'score matching', 'BiSM DSM']
    """
    if not method.islower() or method in ("score_matching", "fisher_critic"):
        return method.replace("_", " ")
    words = method.replace("vages", "VaGES").split("_")
    return "-".join(re.sub(r"^(bi)?([a-z0-9]+)$", _capitals, word) for word in words)


def _capitals(word: re.Match[str]) -> str:
    return (word[1] or "").capitalize() + word[2].upper()


def _unbeaten(places: Sequence[tuple[float, float, str]], way: int) -> list[tuple[float, float, str]]:
    """The points that no other point beats in both the cost and the metric.

    Example:
        >>> _unbeaten([(1, 3, "cheap"), (5, 4, "dear"), (2, 2, "neither")], way=1)
        [(1, 3, 'cheap'), (5, 4, 'dear')]
    """

    def beats(one: tuple[float, float, str], other: tuple[float, float, str]) -> bool:
        return one[:2] != other[:2] and one[0] <= other[0] and way * one[1] >= way * other[1]

    return [place for place in places if not any(beats(other, place) for other in places)]


def _prepare(axes: Axes, label: str, xs: Sequence[float], ys: Sequence[float]) -> None:
    open_frame(axes, grid="both")
    axes.margins(0.12)
    fit_axis(axes.xaxis, xs, ratio=WIDE)
    fit_axis(axes.yaxis, ys, n_ticks=6)
    axes.set_xlabel(label)
