"""Validation curves of several methods in one figure, with the spread over seeds."""

from __future__ import annotations

import logging
import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator

from eblvm_lit.figures.style import (
    COLOURS,
    DASHES,
    INK,
    TICK_STEPS,
    fit_axis,
    new_figure,
    open_frame,
    save,
    styled_text,
)
from eblvm_lit.reports.groups import Group

__all__ = [
    *("LARGEST", "WORDS", "Band", "band", "beside", "draw_bands", "draw_reports", "fill", "first_figures"),
    *("save_figure", "stem_of"),
]

T = TypeVar("T")

WORDS = {
    **{"log_likelihood": "log-likelihood", "quadrature_log_likelihood": "log-likelihood"},
    **{"fisher": "Fisher divergence + const.", "posterior_kl": "posterior KL", "kl": "KL(data || model)"},
}
FIRST = "val/log_likelihood"
MOST_FIGURES = 24  # of a kind: each takes a quarter of a second
MOST_LINES, MOST_LABELS = 6, 50  # of a label, and of labels of a legend, which else is higher than a picture may be
LARGEST = 1e100  # numbers beyond it are not drawn: the ticks of an axis would overflow
MOST_POINTS = 5000  # of a curve: more take seconds, and cannot be told apart

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Band:
    """The mean curve of a group and its spread.

    Attributes:
        label: The label of the group.
        iterations: The iterations at which all runs have a value, shape (T,).
        mean: The mean over runs, shape (T,).
        std: The sample standard deviation over runs, shape (T,); zeros for a single run.
        n: The number of runs.
    """

    label: str
    iterations: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    n: int


def band(group: Group, metric: str) -> Band | None:
    """Mean and spread of a metric over the runs of a group, at their common iterations.

    Args:
        group: The group; runs without the metric are ignored.
        metric: A column of ``metrics.csv``.

    Returns:
        The curve, of many iterations evenly chosen ones; None if there are fewer than two common iterations.
    """
    curves = [run.curves[metric].dropna() for run in group.runs if metric in run.curves]
    values = pd.concat(curves, axis="columns", join="inner") if curves else pd.DataFrame()
    values = values[values.abs().max(axis="columns") < LARGEST]
    if len(values) < 2:
        return None
    values = values.iloc[:: math.ceil(len(values) / MOST_POINTS)]
    mean, std = values.mean(axis="columns").to_numpy(), values.std(axis="columns").fillna(0).to_numpy()
    return Band(group.label, values.index.to_numpy(), mean, std, len(curves))


def draw_reports(groups: Sequence[Group], folder: Path) -> list[Path]:
    """Draw one figure per data set and validation metric, as PNG and PDF.

    Args:
        groups: The groups of all data sets.
        folder: The output folder.

    Returns:
        The written files; those of the log-likelihood come first.
    """
    names = {name for group in groups for run in group.runs for name in run.curves if name.startswith("val/")}
    wanted = []
    for metric in sorted(names, key=lambda name: (name != FIRST, name)):
        for data in dict.fromkeys(group.data for group in groups):
            bands = [band(group, metric) for group in groups if group.data == data]
            if any(bands):
                wanted.append((bands, data, metric))
    paths = []
    for bands, data, metric in first_figures(wanted, "curves"):
        paths += save_figure(draw_bands(bands, data, metric), stem_of(folder, data, metric))
    return paths


def first_figures(wanted: Sequence[T], kind: str) -> Sequence[T]:
    """As many figures as a report draws in bounded time; says how many it leaves out.

    Args:
        wanted: What each figure shows.
        kind: What the figures are, for the message.
    """
    if len(wanted) > MOST_FIGURES:
        log.warning(
            "The first %d of %d figures of %s are drawn: name fewer folders for the others.",
            MOST_FIGURES,
            len(wanted),
            kind,
        )
    return wanted[:MOST_FIGURES]


def stem_of(folder: Path, *words: str) -> Path:
    """A safe path for a figure: names of data sets and metrics come from run folders and may contain ``../``.

    Example:
        >>> stem_of(Path("out"), "digits", "val/log_likelihood").as_posix(), stem_of(Path("out"), "../etc").as_posix()
        ('out/digits_val_log_likelihood', 'out/etc')
    """
    return folder / re.sub(r"[^\w-]+", "_", "_".join(words)).strip("_")[:120]


def save_figure(figure: Figure, stem: Path) -> list[Path]:
    """Write a figure as PNG and PDF."""
    return save(figure, stem, ("png", "pdf"), dpi=300)


@styled_text
def draw_bands(bands: Sequence[Band | None], data: str, metric: str) -> Figure:
    """Draw curves with bands of one standard deviation; the legend follows the order of the final values.

    Args:
        bands: One per group; None for a group without the metric, so that each group has one colour in all figures.
        data: Name of the data set.
        metric: Name of the metric.
    """
    figure = new_figure(4.4, 3.0)
    axes = figure.subplots()
    _prepare(axes, data, metric, [value for curve in bands if curve is not None for value in curve.mean])
    drawn = []
    for i, curve in enumerate(bands):
        if curve is None:
            continue
        # colours and dashes both change from curve to curve, so that prints in grey can be read
        look = {"color": COLOURS[i % len(COLOURS)], "linestyle": DASHES[i % len(DASHES)]}
        (line,) = axes.plot(curve.iterations, curve.mean, **look)
        if curve.n > 1:
            low, high = curve.mean - curve.std, curve.mean + curve.std
            axes.fill_between(curve.iterations, low, high, color=look["color"], alpha=0.16, linewidth=0)
        drawn.append((curve, line))
    _legend(axes, sorted(drawn, key=lambda entry: -entry[0].mean[-1]))
    return figure


def _legend(axes: Axes, drawn: Sequence[tuple[Band, Line2D]]) -> None:
    counts = {curve.n for curve, _ in drawn}
    labels = [curve.label if len(counts) == 1 else f"{curve.label} (n = {curve.n})" for curve, _ in drawn]
    title = None if counts == {1} else f"mean ± s.d.{f' of {max(counts)} runs' * (len(counts) == 1)}"
    if len(drawn) > MOST_LABELS:
        drawn, labels = drawn[:MOST_LABELS], labels[:MOST_LABELS]
        title = "\n".join(filter(None, [title, f"the {MOST_LABELS} highest"]))
    beside(axes, [line for _, line in drawn], labels, title)


def fill(label: str, width: int, indent: str = "") -> str:
    r"""Break a label into lines between its settings, not within ``n = 3``.

    Example:
        >>> fill("dsm, lr = 0.1 (n = 3)", 14)
        'dsm, lr = 0.1\n(n = 3)'
    """
    kept = label.replace(" = ", "\u00a0=\u00a0")  # textwrap breaks at other spaces alone
    return textwrap.fill(
        kept, width, subsequent_indent=indent, break_long_words=False, max_lines=MOST_LINES, placeholder=" …"
    ).replace("\u00a0", " ")


def beside(axes: Axes, handles: Sequence[Line2D], labels: Sequence[str], title: str | None = None) -> None:
    """Put a legend to the right of the axes without shrinking them."""
    legend = axes.legend(
        handles,
        [fill(label, 36, indent="   ") for label in labels],
        title=title,
        loc="center left",
        bbox_to_anchor=(1.01, 0.5),
        handlelength=2.6 if handles[0].get_linestyle() not in ("", "None") else 1.0,
        alignment="left",
        labelspacing=0.4,
    )
    legend.get_title().set_color(INK)
    legend.set_in_layout(False)


def _prepare(axes: Axes, data: str, metric: str, values: Sequence[float]) -> None:
    open_frame(axes, data.replace("_", " "))
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=TICK_STEPS))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    fit_axis(axes.yaxis, values, n_ticks=6)
    axes.set_xlabel("iteration")
    name = metric.split("/")[-1]
    axes.set_ylabel(f"validation {WORDS.get(name, name.replace('_', ' '))}")
