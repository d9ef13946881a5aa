"""Figures of the errors of hypergradients, and of the descents that use them, on quadratic problems."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from benchmarks.quadratic_estimators import ESTIMATORS
from eblvm_lit.figures.style import COLOURS, DASHES, INK, new_figure, open_frame, styled

__all__ = ["draw_errors", "draw_outer"]

WIDTH = 7.0  # the width in inches: a page shows a figure about 700 pixels wide
ROWS = {"errors": r"The error at the optimum $\phi^*$", "away": r"The error where $\phi$ is 1 % away from $\phi^*$"}
# The number of an estimator determines its colour and its dashes, which are the same in both figures.
PLACES = {name: i for i, name in enumerate(ESTIMATORS)} | {"N = 0": 0, "N = 1": 1, "penalty, 10 steps": 5}
LABELS = ("radius r", "multiplier λ / κ", r"$\|\phi - \phi^*\|\ /\ \|\phi^*\|$")
TITLES = ("finite difference (G quartic)", "penalty", "implicit, CG")


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
    """Draw the errors and the biases of hypergradients in three rows of panels.

    The first row shows errors against evaluations at phi*, and the second row shows them away from phi*. Both have one
    panel per condition number. The third row shows the biases, with one panel per kind of bias. Each row has its title
    and its legend.
    """
    figure = new_figure(WIDTH, 8.2)
    *rows, last = figure.subfigures(3, 1, height_ratios=(1.12, 1, 1))
    for part, (setting, title) in zip(rows, ROWS.items(), strict=True):
        part.suptitle(title, fontsize=10)
        panels = part.subplots(1, len(found[setting]), sharey=True, squeeze=False)[0]
        for axes, (kappa, errors) in zip(panels, found[setting].items(), strict=True):
            logarithmic(axes, f"κ = {kappa:,}", 1e-9, 3.0)
            curves(axes, errors)
            axes.axhline(1e-3, color=INK, linewidth=0.6)
            axes.set_xlabel("evaluations")
        panels[0].set_ylabel("relative error")
        # One line of a legend takes as much height as a tenth of the panels. The legend of the first row has one line
        # more, so that the first row has a larger height ratio.
        handles, labels = panels[0].get_legend_handles_labels()
        part.legend(handles, labels, loc="outside lower center", ncols=4, handlelength=3.5, columnspacing=1.2)
    last.suptitle("The error that no number of steps removes", fontsize=10)
    for column, (axes, title, label) in enumerate(zip(last.subplots(1, 3), TITLES, LABELS, strict=True)):
        logarithmic(axes, title, (1e-9, 1e-6, 1e-6)[column], 10.0)
        for i, (kappa, biases) in enumerate(found["biases"].items()):
            errors = list(biases.values())[column]
            unit = kappa if column == 1 else 1
            axes.plot([r["at"] / unit for r in errors], [r["error"] for r in errors], label=f"κ = {kappa:,}", **look(i))
        axes.set_xlabel(label)
        if column == 0:
            axes.set_ylabel("relative error")
            axes.legend(loc="upper left")
        else:  # the lines of all kappas coincide, so that no legend is needed
            axes.text(0.5, 0.9, "equal for every κ", transform=axes.transAxes, ha="center", fontsize=8)
    return figure


@styled
def draw_outer(found: dict[str, Any]) -> Figure:
    """Draw the distance of theta from the solution against evaluations, in one panel per condition number."""
    figure = new_figure(WIDTH, 3.4)
    panels = figure.subplots(1, len(found["outer"]), squeeze=False)[0]
    for axes, (kappa, rows) in zip(panels, found["outer"].items(), strict=True):
        logarithmic(axes, f"κ = {kappa:,}", 1e-4, 10.0)
        curves(axes, {name: row[1:] for name, row in rows.items()})
        axes.set(xlabel="evaluations", ylabel=r"$\|\theta - \theta^*\|\ /\ \|\theta^*\|$")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3, handlelength=3.5)
    return figure
