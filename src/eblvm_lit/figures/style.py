"""The common style of all figures and reports: fonts, sizes, colours and scales, and a function that saves figures."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import matplotlib
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from eblvm_lit.utils.io import write_whole

__all__ = [
    "COLOURS",
    "DASHES",
    "DECADES",
    "GRID",
    "INK",
    "MARKERS",
    "STYLE",
    "TICK_STEPS",
    "fit_axis",
    "new_figure",
    "open_frame",
    "save",
    "styled",
    "styled_text",
]

INK = "#333a45"  # colour of frames, ticks and text
GRID = "#e2e8f0"
DPI = 150
TICK_STEPS = [1, 2, 2.5, 5, 10]
DECADES = 100.0  # an axis is logarithmic if the largest number is at least this many times the smallest number

# The colours of Okabe and Ito, except the pale yellow; colour-blind readers can distinguish them. In grey prints, and
# if there are more than seven curves, dashes and markers distinguish the curves.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", INK)
DASHES = ("-", (0, (5, 1.6)), (0, (1.2, 1.2)), (0, (5, 1.4, 1.2, 1.4)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

STYLE = {
    **{"font.size": 9, "axes.titlesize": 10, "axes.titlepad": 6, "axes.labelsize": 9, "figure.labelsize": 8},
    **{"xtick.labelsize": 8, "ytick.labelsize": 8, "legend.fontsize": 8, "legend.title_fontsize": 8},
    **{f"{part}color": INK for part in ("text.", "axes.edge", "axes.label", "axes.title", "xtick.", "ytick.")},
    **{"legend.frameon": False, "legend.labelcolor": INK, "axes.axisbelow": True},
    **{"axes.linewidth": 0.6, "grid.color": GRID, "grid.linewidth": 0.6},
    **{f"{axis}tick.major.{key}": value for axis in "xy" for key, value in (("width", 0.6), ("size", 3))},
    **{f"{axis}tick.minor.{key}": value for axis in "xy" for key, value in (("width", 0.4), ("size", 1.5))},
    **{"lines.linewidth": 1.3, "lines.markersize": 3},
    "axes.prop_cycle": cycler(color=COLOURS) + cycler(linestyle=[DASHES[i % len(DASHES)] for i in range(len(COLOURS))]),
    **{"pdf.fonttype": 42, "svg.fonttype": "none"},  # embed TrueType fonts, because publishers reject Type 3 fonts
}

styled = matplotlib.rc_context(STYLE)
"""A decorator: while the function draws, matplotlib has this style; afterwards everything is as before."""

styled_text = matplotlib.rc_context(STYLE | {"text.parse_math": False})
"""As ``styled``, for names of runs and metrics: a ``$`` in them is a character and begins no formula."""


def new_figure(width: float, height: float) -> Figure:
    """Create an empty figure whose width and height are given in inches.

    Example:
        >>> new_figure(4, 3).get_size_inches().tolist()
        [4.0, 3.0]
    """
    return Figure(figsize=(width, height), dpi=DPI, facecolor="white", layout="constrained")


def open_frame(axes: Axes, title: str | None = None, grid: str = "y") -> None:
    """Style axes for curves and points: remove the top and right spines, and add a light grid.

    Args:
        axes: The axes.
        title: The title of the panel; None for no title.
        grid: The axis whose ticks have grid lines: ``x``, ``y`` or ``both``.
    """
    if title is not None:
        axes.set_title(title)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid)


def fit_axis(axis: Axis, values: np.ndarray | Sequence[float], *, n_ticks: int = 5, ratio: float = DECADES) -> bool:
    """Choose the ticks of an axis and its scale: logarithmic for positive numbers that span orders of magnitude.

    Tick labels show complete numbers such as 2.5e-05: a common factor beside the axis would overlap the title.

    Args:
        axis: The x or y axis of a panel.
        values: The numbers that the axis shows.
        n_ticks: Approximate largest number of ticks.
        ratio: The scale is logarithmic if the ratio of the largest to the smallest number is at least this.

    Returns:
        Whether the scale is logarithmic.

    Example:
        >>> axes = new_figure(4, 3).subplots()
        >>> fit_axis(axes.yaxis, [0.01, 3, 40]), fit_axis(axes.xaxis, [-1, 100])
        (True, False)
        >>> axes.get_yscale(), axes.xaxis.get_major_formatter()(2.5e-5)
        ('log', '2.5e-05')
    """
    numbers = np.asarray(values, dtype=float)
    numbers = numbers[np.isfinite(numbers)]
    logarithmic = numbers.size > 0 and numbers.min() > 0 and numbers.max() >= ratio * numbers.min()
    if logarithmic:
        axis.axes.set(**{f"{axis.axis_name}scale": "log"})
        wide = numbers.max() >= DECADES * numbers.min()
        axis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0), numticks=n_ticks + 2))
        axis.set_minor_formatter(NullFormatter())
    else:
        axis.set_major_locator(MaxNLocator(n_ticks, steps=TICK_STEPS))
    axis.set_major_formatter(FuncFormatter(_plain))
    return bool(logarithmic)


def _plain(value: float, _: int | None = None) -> str:
    text = f"{value:.10g}"  # ten digits, so that neighbouring ticks near 1234567.5 differ
    return f"−{text[1:]}" if value < 0 else text


@styled
def save(figure: Figure, stem: Path, formats: Sequence[str] = ("png",), dpi: int = DPI) -> list[Path]:
    """Write a figure, including legends beside the axes, atomically to one file per format.

    Args:
        figure: The figure.
        stem: The path of the files without suffix; missing folders are created.
        formats: The file formats, such as ``png`` and ``pdf``.
        dpi: Resolution of pixel formats, in dots per inch.

    Returns:
        The paths of the files.

    Raises:
        DataError: If a file cannot be written.
    """
    logging.getLogger("fontTools").setLevel(logging.WARNING)  # fontTools logs a line for each font table in a PDF
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in formats]
    legends = [legend for axes in figure.axes if (legend := axes.get_legend())]
    beside = [*figure.get_default_bbox_extra_artists(), *legends]  # include legends that the layout ignores
    for path in paths:
        options = {"format": path.suffix[1:], "dpi": dpi, "bbox_inches": "tight", "bbox_extra_artists": beside}
        write_whole(path, partial(figure.savefig, **options))
    return paths
