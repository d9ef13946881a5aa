"""A figure of an iteration's time and memory as functions of one size of the problem."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.growth_fits import Line, PowerLaw
from eblvm_lit.figures.style import COLOURS, INK, fit_axis, new_figure, open_frame, styled

__all__ = ["draw"]

LABELS = {"seconds": "ms an iteration", "mib": "peak memory, MiB"}
UNITS = {"seconds": 1e3, "mib": 1.0}
TITLES = {"seconds": "time", "mib": "memory"}


@styled
def draw(
    label: str,
    power: int | None,
    *,
    subject: str,
    rows: list[dict[str, Any]],
    beside: dict[str, Any] | None,
    fits: dict[str, PowerLaw | Line],
) -> Figure:
    """Draw the measured time, and the memory if it was measured, as functions of one size.

    Each panel has the points with their ranges, the fit, and the expected growth.

    Args:
        label: The label of the x axis.
        power: The expected exponent; None if a straight line a + b x is expected.
        subject: What was measured: the method, the model and its sizes.
        rows: The measurements at each x.
        beside: The measurements of a method without the size that grows; None if there is none.
        fits: The fits of seconds and of memory.
    """
    keys = [key for key in LABELS if key in fits]
    figure = new_figure(3.5 * len(keys), 3.0)
    figure.suptitle(subject, fontsize=10)
    panels = figure.subplots(1, len(keys), squeeze=False)[0]
    for axes, key in zip(panels, keys, strict=True):
        panel(axes, power, key, rows, fits)
        if beside:
            level = UNITS[key] * beside[key]
            axes.axhline(level, color=COLOURS[2], linestyle=":")
            below = {"xytext": (0, -4), "textcoords": "offset points", "ha": "right", "va": "top"}
            axes.annotate(
                f"fixed point: {level:.3g}",
                (0.99, level),
                xycoords=axes.get_yaxis_transform(),
                color=COLOURS[2],
                fontsize=8,
                **below,
            )
        axes.set(xlabel=label, ylabel=LABELS[key])
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="best" if power is not None else "upper left")
    return figure


def panel(
    axes: Axes, power: int | None, key: str, rows: list[dict[str, Any]], fits: dict[str, PowerLaw | Line]
) -> None:
    unit = UNITS[key]
    fit = fits[key]
    x = np.array([row["x"] for row in rows], dtype=float)
    y = unit * np.array([row[key] for row in rows])
    open_frame(axes, TITLES[key], grid="both")
    colour = COLOURS[0] if key == "seconds" else COLOURS[3]
    axes.plot(x, y, "o", color=colour)
    if key == "seconds" and "slowest" in rows[0]:
        low, high = (unit * np.array([row[end] for row in rows]) for end in ("fastest", "slowest"))
        axes.vlines(x, ymin=low, ymax=high, color=colour)
    inner = x[x >= fit.first] if isinstance(fit, PowerLaw) else x
    # Only a power law is named in the legend, because only its exponent is compared with an expected number.
    name = f"fitted exponent {fit}" if isinstance(fit, PowerLaw) else None
    axes.plot(inner, unit * fit(inner), "-", color=colour, label=name)
    thin = {"color": INK, "linewidth": 0.6, "linestyle": "--"}
    if power is not None:
        axes.plot(x, y[-1] * (x / x[-1]) ** power, label=f"expected exponent {power}", **thin)
        fit_axis(axes.xaxis, x, ratio=1.0)
        fit_axis(axes.yaxis, y, ratio=1.0)
    elif key == "seconds":
        counted = np.array([row["products"] for row in rows])
        axes.plot(x, y[-1] * counted / counted[-1], label="proportional to the counted products", **thin)
    if power is None:
        axes.set_ylim(0, 1.35 * max(unit * row.get("slowest" if key == "seconds" else key, 0) for row in rows))
