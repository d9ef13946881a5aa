"""A figure of a run's learning curves, read from its metrics.csv."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.figures.base import INK, TICK_STEPS, Picture, frame, new_figure
from eblvm_lit.methods.base import Method

__all__ = ["LearningCurves", "draw_curves", "read_curves"]

X_AXIS = "iteration"
NOT_CURVES = (X_AXIS, "step", "epoch", "train/iterations_per_second")
COLOURS = {"train": "#2b6cb0", "val": "#c05621"}
OTHER_COLOUR = "#4a5568"
SMOOTH_ABOVE = 60  # curves of fewer points are drawn as they are

Curve = tuple[np.ndarray, np.ndarray]


def read_curves(csv_path: str | Path) -> dict[str, Curve]:
    """Read the columns of a metrics file that hold at least two numbers.

    Args:
        csv_path: A file with a column ``iteration``; cells may be empty.

    Returns:
        Iterations and values by column name, training first, then by name; non-finite values are left out.
    """
    with open(csv_path, newline="") as file:
        rows = list(csv.DictReader(file))
    curves: dict[str, Curve] = {}
    for name in rows[0] if rows else ():
        if name in NOT_CURVES or name is None:
            continue
        points = [(_number(row.get(X_AXIS)), _number(row.get(name))) for row in rows]
        points = sorted((x, y) for x, y in points if math.isfinite(x) and math.isfinite(y))
        if len(points) > 1:
            curves[name] = tuple(np.array(points).T)
    return dict(sorted(curves.items(), key=lambda item: (not item[0].startswith("train/"), item[0])))


def _number(cell: str | None) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError):
        return math.nan


def draw_curves(csv_path: str | Path) -> Figure | None:
    """Draw each metric of a run over its iterations, one small panel each.

    Args:
        csv_path: The run's ``metrics.csv``.

    Returns:
        The figure; None where the file is missing or holds no curve.

    Example:
        >>> draw_curves("nowhere/metrics.csv") is None
        True
    """
    curves = read_curves(csv_path) if Path(csv_path).is_file() else {}
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
        panel.set_xlabel(X_AXIS, color=INK, fontsize=8)
    return figure


def _draw(panel: Axes, name: str, curve: Curve) -> None:
    x, y = curve
    frame(panel, name)
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="y", color="#e2e8f0", linewidth=0.6)
    panel.xaxis.set_major_locator(MaxNLocator(5, steps=TICK_STEPS))
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    panel.yaxis.set_major_locator(MaxNLocator(5, steps=TICK_STEPS))
    colour = COLOURS.get(name.split("/")[0], OTHER_COLOUR)
    if len(y) <= SMOOTH_ABOVE:
        panel.plot(x, y, color=colour, linewidth=1.3, marker="o", markersize=2.5)
        return
    panel.plot(x, y, color=colour, linewidth=0.5, alpha=0.3)
    panel.plot(x, _smooth(y), color=colour, linewidth=1.3)
    # the first losses may be a thousand times larger than the last ones
    low, high = np.quantile(y, [0.005, 0.98])
    margin = 0.08 * (high - low) or 1.0
    panel.set_ylim(low - margin, high + margin)


def _smooth(y: np.ndarray) -> np.ndarray:
    """Running mean over a thirtieth of the run, over a shorter window at the ends."""
    half = max(1, len(y) // 60)
    total = np.concatenate([[0.0], y.cumsum()])
    index = np.arange(len(y))
    start, stop = np.maximum(index - half, 0), np.minimum(index + half + 1, len(y))
    return (total[stop] - total[start]) / (stop - start)


class LearningCurves(Picture):
    """The learning curves of a run.

    Args:
        csv_path: The run's ``metrics.csv``.

    Example:
        >>> LearningCurves(csv_path="nowhere.csv").draw(None, None, torch.Generator()) is None
        True
    """

    name = "curves"

    def __init__(self, *, csv_path: str | Path = "metrics.csv") -> None:
        self.csv_path = csv_path

    def draw(
        self,
        method: Method,  # noqa: ARG002 - all is read from the file
        data: ArrayDataModule,  # noqa: ARG002
        generator: torch.Generator,  # noqa: ARG002
    ) -> Figure | None:
        """Draw it; see :func:`draw_curves`."""
        return draw_curves(self.csv_path)
