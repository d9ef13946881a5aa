"""Heat maps of a metric over two swept settings, such as N and K of BiSM (Bao et al. 2020, Table 3)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from eblvm_lit.figures.style import frame, new_figure, styled_text
from eblvm_lit.reports.groups import Group, setting_name
from eblvm_lit.reports.method_curves import LARGEST, fill, first_figures, save_figure, stem_of
from eblvm_lit.reports.published import direction
from eblvm_lit.reports.table import ARROWS, summarise

__all__ = ["Grid", "draw_grid", "draw_heat_maps", "find_grids"]


# What may span a heat map: settings of these parts of the configuration, and these keys.
PARTS = frozenset(
    (
        *("method", "model", "objective", "score", "particles", "estimate", "covariance", "posterior", "divergence"),
        *("hypergradient", "chain", "noise", "noise_distribution", "optimizer", "generator", "ratio", "loss"),
    )
)
MOST_CELLS = 600  # more cannot be read
AXES = frozenset(("n_unroll", "final_lr", "data.batch_size", "data.v_dim"))


@dataclass(frozen=True)
class Grid:
    """Groups that differ in two numeric settings.

    Attributes:
        data: Name of the data set.
        label: The method and its other settings.
        rows: Path of the setting that varies over rows.
        columns: Path of the setting that varies over columns.
        cells: The groups by the values of both settings.
    """

    data: str
    label: str
    rows: str
    columns: str
    cells: Mapping[tuple[float, float], Group]

    @property
    def axes(self) -> tuple[list[float], list[float]]:
        """The sorted values of the rows and of the columns."""
        return tuple(sorted({key[i] for key in self.cells}) for i in range(2))

    @property
    def name(self) -> str:
        """The caption."""
        return f"{self.data}, {self.label}: {setting_name(self.rows)} × {setting_name(self.columns)}"


def find_grids(groups: Sequence[Group]) -> Iterator[Grid]:
    """Find the sweeps over two numbers that say something about a method, each with at least two values.

    These are settings of the method and its parts, such as N, K, L, a learning rate or the noise; not the length of a
    run or the number of validations. If more than two were swept, the two with the most values span the grids, one grid
    per choice of the others. A sweep that changes one setting at a time fills less than half of a grid, and has none.

    Args:
        groups: Groups of any methods and data sets.
    """
    for data, method in dict.fromkeys((group.data, group.method) for group in groups):
        rivals = [group for group in groups if (group.data, group.method) == (data, method)]
        swept = _swept(rivals)
        if len(swept) < 2:
            continue
        chosen = sorted(swept, key=swept.get, reverse=True)[:2]
        rows, columns = (path for path in swept if path in chosen)
        by_rest: dict[tuple[str, ...], dict[tuple[float, float], Group]] = {}
        for group in rivals:
            rest = tuple(text for path, text in zip(group.paths, group.settings, strict=True) if path not in chosen)
            by_rest.setdefault(rest, {})[group.config[rows], group.config[columns]] = group
        for rest, cells in by_rest.items():
            grid = Grid(data, ", ".join([method, *rest]), rows, columns, cells)
            rows_and_columns = len(grid.axes[0]), len(grid.axes[1])
            full = 2 * len(cells) > math.prod(rows_and_columns)
            if min(rows_and_columns) > 1 and math.prod(rows_and_columns) <= MOST_CELLS and full:
                yield grid


def _swept(rivals: Sequence[Group]) -> dict[str, int]:
    """The number of values of each swept numeric setting, by path."""
    counts = {}
    for path in dict.fromkeys(path for group in rivals for path in group.paths if _says_something(path)):
        values = [group.config.get(path) for group in rivals]
        if all(_is_number(value) for value in values):
            counts[path] = len(set(values))
    return {path: count for path, count in counts.items() if count > 1}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _says_something(path: str) -> bool:
    """Whether a setting is one of a method or its parts.

    Example:
        >>> [_says_something(path) for path in ("method.n_unroll", "noise.std", "n_validations", "trainer.max_steps")]
        [True, True, False, False]
    """
    return path in AXES or path.split(".")[0] in PARTS


def draw_heat_maps(groups: Sequence[Group], metrics: Sequence[str], folder: Path) -> dict[Path, str]:
    """Draw one heat map per grid and metric, as PNG and PDF.

    Args:
        groups: The groups of all data sets.
        metrics: The metrics to draw.
        folder: The output folder.

    Returns:
        The written files with their captions.
    """
    wanted = []
    for number, grid in enumerate(find_grids(groups)):
        for metric in metrics:
            if any(metric in run.metrics for group in grid.cells.values() for run in group.runs):
                wanted.append((grid, metric, stem_of(folder, grid.data, metric, "heat", str(number))))
    drawn: dict[Path, str] = {}
    for grid, metric, stem in first_figures(wanted, "heat maps"):
        for path in save_figure(draw_grid(grid, metric), stem):
            drawn[path] = f"{metric} of {grid.name}"
    return drawn


@styled_text
def draw_grid(grid: Grid, metric: str) -> Figure:
    """Draw a heat map with the numbers of the table in its cells; brighter is better.

    Args:
        grid: The groups.
        metric: Name of the metric.
    """
    summary = summarise(list(grid.cells.values()), [metric])
    summary[["row", "column"]] = list(grid.cells)
    values, texts = (summary.pivot(index="row", columns="column", values=name).to_numpy() for name in ("mean", "text"))
    figure = new_figure(1.4 + 1.15 * values.shape[1], 1.0 + 0.5 * values.shape[0])
    axes = figure.subplots()
    colours = matplotlib.colormaps["viridis_r" if direction(metric) < 0 else "viridis"]
    values = np.where(np.abs(values) < LARGEST, values, np.nan)
    image = axes.imshow(np.ma.masked_invalid(values), cmap=colours, aspect="auto")
    for y, x in np.argwhere(np.isfinite(values)):
        colour = "black" if _bright(image.to_rgba(values[y, x])) else "white"
        text = texts[y, x].replace(" (", "\n(")
        axes.annotate(text, (x, y), ha="center", va="center", fontsize=7, color=colour)
    _label(axes, grid, metric)
    return figure


def _bright(rgba: Sequence[float]) -> bool:
    """Whether black text is easier to read on this colour: its relative luminance exceeds that of a middle grey."""
    return float(np.dot(rgba[:3], (0.2126, 0.7152, 0.0722))) > 0.45


def _label(axes: Axes, grid: Grid, metric: str) -> None:
    name = grid.data.replace("_", " ")
    frame(axes, f"{metric}{ARROWS[direction(metric)]}\n{fill(f'{name}, {grid.label}', 80)}")
    for axis, values, path in zip((axes.yaxis, axes.xaxis), grid.axes, (grid.rows, grid.columns), strict=True):
        axis.set_ticks(range(len(values)), [f"{value:g}" for value in values])
        axis.set_label_text(setting_name(path))
    axes.tick_params(length=0)
