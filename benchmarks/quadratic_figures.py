"""Figures of the errors of hypergradients, and of the descents that use them, on quadratic problems."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from benchmarks.quadratic_estimators import ESTIMATORS
from eblvm_lit.figures.style import COLOURS, DASHES, INK, new_figure, open_frame, styled

__all__ = ["draw_errors", "draw_outer"]

ROWS = {"errors": r"error at $\phi^*$", "away": r"error near $\phi^*$"}
# The place determines an estimator's colour and dash, which are the same in both figures.
PLACES = {name: i for i, name in enumerate(ESTIMATORS)} | {"N = 0": 0, "N = 1": 1, "penalty, 10 steps": 5}
LABELS = ("radius r", "multiplier λ / κ", r"$\|\phi - \phi^*\|\ /\ \|\phi^*\|$")
TITLES = ("finite difference, q = 1", "penalty", "implicit, CG")


def logarithmic(axes: Axes, title: str, floor: float, top: float | None = None) -> None:
    open_frame(axes, title, grid="both")
    axes.set(xscale="log", yscale="log", ylim=(floor, top))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(numticks=6))
        axis.set_minor_locator(NullLocator())


def look(i: int) -> dict[str, Any]:
    return {"color": COLOURS[i % len(COLOURS)], "linestyle": DASHES[i % len(DASHES)], "linewidth": 2.1 - 0.12 * i}


def curves(axes: Axes, rows: dict[str, list[dict[str, float]]]) -> None:
    """Draw the errors of each estimator against the evaluations of the lower level."""
    for name, row in rows.items():
        points = [(r["evaluations"], r["error"]) for r in row]
        axes.plot(*zip(*points, strict=True), label=name, **look(PLACES[name]))


@styled
def draw_errors(found: dict[str, Any]) -> Figure:
    """Draw errors of hypergradients against evaluations, at phi* and away from it, and biases.

    The first two rows have one panel per condition number, the last row has one panel per kind of bias.
    """
    figure = new_figure(9, 7.4)
    grid = figure.add_gridspec(3, 12)
    for row, (setting, label) in enumerate(ROWS.items()):
        width = 12 // len(found[setting])
        for column, (kappa, rows) in enumerate(found[setting].items()):
            axes = figure.add_subplot(grid[row, width * column : width * (column + 1)])
            logarithmic(axes, f"κ = {kappa:,}", 1e-9, 3.0)
            curves(axes, rows)
            axes.axhline(1e-3, color=INK, linewidth=0.6)
            axes.set_xlabel("evaluations")
            if column == 0:
                axes.set_ylabel(label)
            if row == column == 0:
                figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=4, handlelength=3.5)
    for column, (title, label) in enumerate(zip(TITLES, LABELS, strict=True)):
        axes = figure.add_subplot(grid[2, 4 * column : 4 * column + 4])
        logarithmic(axes, title, (1e-9, 1e-6, 1e-6)[column], 10.0)
        for i, (kappa, biases) in enumerate(found["biases"].items()):
            rows = list(biases.values())[column]
            unit = kappa if column == 1 else 1
            axes.plot([r["at"] / unit for r in rows], [r["error"] for r in rows], label=f"κ = {kappa:,}", **look(i))
        axes.set_xlabel(label)
        if column == 0:
            axes.set_ylabel("relative error")
            axes.legend(loc="upper left")
    return figure


@styled
def draw_outer(found: dict[str, Any]) -> Figure:
    """Draw the distance of theta from the solution against evaluations, one panel per condition number."""
    figure = new_figure(8, 3.6)
    panels = figure.subplots(1, len(found["outer"]), squeeze=False)[0]
    for axes, (kappa, rows) in zip(panels, found["outer"].items(), strict=True):
        logarithmic(axes, f"κ = {kappa:,}", 1e-4, 10.0)
        curves(axes, {name: row[1:] for name, row in rows.items()})
        axes.set(xlabel="evaluations", ylabel=r"$\|\theta - \theta^*\|\ /\ \|\theta^*\|$")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3, handlelength=3.5)
    return figure
