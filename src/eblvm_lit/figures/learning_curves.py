"""A figure of a run's learning curves, read from its metrics.csv."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.figures.base import Picture
from eblvm_lit.figures.style import COLOURS, DECADES, INK, TICK_STEPS, fit_axis, new_figure, open_frame, styled_text
from eblvm_lit.methods.base import Method
from eblvm_lit.utils.run_files import read_curves

__all__ = ["LearningCurves", "draw_curves"]

NOT_CURVES = ("step", "epoch", "train/iterations_per_second")
COLOUR_OF_SPLIT = {"train": COLOURS[0], "val": COLOURS[1]}
SMOOTH_ABOVE = 60  # only curves with more points are smoothed
WINDOW = 30  # the window of the running mean is 1/30 of the curve

Curve = tuple[np.ndarray, np.ndarray]


def curves_of(csv_path: str | Path) -> dict[str, Curve]:
    """Read the columns of a metrics file that contain at least two numbers.

    Args:
        csv_path: A file with a column ``iteration``; cells may be empty.

    Returns:
        Arrays of iterations and of values by column name, first ``train/`` columns, then the others, each in
        alphabetical order. Values that are not finite are left out.
    """
    table = read_curves(Path(csv_path)).apply(pd.to_numeric, errors="coerce")
    names = sorted({*table} - {*NOT_CURVES}, key=lambda name: (not name.startswith("train/"), name))
    curves = {name: table[name].dropna() for name in names}
    return {name: (y.index.to_numpy(float), y.to_numpy(float)) for name, y in curves.items() if len(y) > 1}


@styled_text
def draw_curves(csv_path: str | Path) -> Figure | None:
    """Draw each metric of a run over the iterations in a small panel of its own.

    Metrics that never change are left out, unless none changes.

    Long curves are drawn as thin lines, with their running mean as a thick line. The y axis is logarithmic if the
    values are positive and span two orders of magnitude.

    Args:
        csv_path: The run's ``metrics.csv``.

    Returns:
        The figure; None if the file is missing or contains no curve.

    Example:
        >>> draw_curves("nowhere/metrics.csv") is None
        True
    """
    curves = curves_of(csv_path) if Path(csv_path).is_file() else {}
    # A metric that never changes, such as the true Fisher divergence of fixed data, needs no panel.
    curves = {name: (x, y) for name, (x, y) in curves.items() if np.ptp(y) > 0} or curves
    if not curves:
        return None
    columns = min(3, len(curves))
    rows = math.ceil(len(curves) / columns)
    figure = new_figure(3.0 * columns + 0.2, 2.1 * rows + 0.2)
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel, (name, curve) in zip(panels, curves.items(), strict=False):
        _draw(panel, name, curve)
    for panel in panels[len(curves) :]:
        panel.set_axis_off()
    for panel in panels[max(0, len(curves) - columns) : len(curves)]:
        panel.set_xlabel("iteration")
    if any(len(y) > SMOOTH_ABOVE for _, y in curves.values()):
        figure.supxlabel(f"Thin: logged values. Thick: their running mean over 1/{WINDOW} of the run.", color=INK)
    return figure


def _draw(panel: Axes, name: str, curve: Curve) -> None:
    x, y = curve
    open_frame(panel, name)
    panel.xaxis.set_major_locator(MaxNLocator(5, steps=TICK_STEPS))
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    ratio = math.inf if name.endswith("_lr") else DECADES  # learning rates always get a linear axis
    colour = COLOUR_OF_SPLIT.get(name.split("/")[0], INK)
    if len(y) <= SMOOTH_ABOVE:
        fit_axis(panel.yaxis, y, ratio=ratio)
        panel.plot(x, y, color=colour, linestyle="-", marker="o", markersize=2.5)
        return
    # The axis covers a range of quantiles, because the first losses may be a thousand times as large as the last ones.
    low, high = np.quantile(y, [0.005, 0.98])
    logarithmic = fit_axis(panel.yaxis, [low, high], ratio=ratio)
    panel.plot(x, y, color=colour, linestyle="-", linewidth=0.5, alpha=0.3)
    window = 2 * max(1, len(y) // (2 * WINDOW)) + 1  # the number of points is odd, so that the window has a centre
    smooth = pd.Series(y).rolling(window, center=True, min_periods=1).mean()
    panel.plot(x, smooth, color=colour, linestyle="-")
    margin = 0.08 * (high - low) or 1.0
    panel.set_ylim(*((low / 1.3, high * 1.3) if logarithmic else (low - margin, high + margin)))


class LearningCurves(Picture):
    """A figure of the learning curves of a run, read from its metrics file.

    There is one panel for each metric, with the iterations along the horizontal axis; long curves are drawn pale, with
    their running mean on top. The losses of the levels need not fall: score-matching losses have a floor that is not 0,
    and the losses of energies that are trained against a generator go up and down. Check whether val/ metrics still
    improve at the end, and whether a gradient norm grows.

    Args:
        csv_path: The run's ``metrics.csv``.

    Example:
        >>> LearningCurves(csv_path="nowhere.csv").draw(None, None, torch.Generator()) is None
        True
    """

    name = "curves"

    def __init__(self, *, csv_path: str | Path = "metrics.csv") -> None:
        self.csv_path = csv_path

    def draw(self, method: Method, data: ArrayDataModule, generator: torch.Generator) -> Figure | None:
        """Draw the learning curves; see :func:`draw_curves`."""
        return draw_curves(self.csv_path)
