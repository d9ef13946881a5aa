"""A figure of the bias of VaES and VaGES against the divergence of q from p."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from eblvm_lit.figures.final_metrics import ResultPicture
from eblvm_lit.figures.style import COLOURS, INK, new_figure, styled

__all__ = ["ScoreBiasCurves", "draw_score_bias"]

NAMES = {"vaes": "VaES", "vages": "VaGES"}
AXES = {"kl": "KL(q || p)", "fisher": "Fisher divergence"}
LOOKS = {"vaes": (COLOURS[0], "o"), "vages": (COLOURS[1], "s")}


@styled
def draw_score_bias(metrics: Mapping[str, float]) -> Figure | None:
    """Draw what :class:`~eblvm_lit.evaluation.studies.score_bias.ScoreBias` found, in logarithmic axes.

    Args:
        metrics: Numbers by name, with or without a split's prefix.

    Returns:
        The figure; None without such numbers.

    Example:
        >>> found = {f"test/score_bias_{k}_t{i}": 10.0**i for k in ("kl", "vaes", "vages") for i in range(2)}
        >>> draw_score_bias(found).axes[0].get_xlabel()
        'KL(q || p)'
    """
    curves: dict[str, dict[int, float]] = {}
    for name, value in metrics.items():
        if match := re.search(r"score_bias_(\w+)_t(\d+)$", name):
            curves.setdefault(match[1], {})[int(match[2])] = value
    values = {name: np.array([row[i] for i in sorted(row)]) for name, row in curves.items()}
    panels = [divergence for divergence in AXES if divergence in values]
    if not panels:
        return None
    figure = new_figure(4.2 * len(panels), 3.5)
    for axes, divergence in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        x = values[divergence]
        for name, label in NAMES.items():
            colour, marker = LOOKS[name]
            axes.plot(x, values[name], color=colour, linestyle="-", marker=marker, label=label)
            if divergence == "kl" and f"{name}_bound" in values:
                axes.plot(
                    x, values[f"{name}_bound"], color=colour, linewidth=0.9, linestyle="--", label=f"{label}, bound"
                )
        guide = values["vaes"][0] / 3 * np.sqrt(x / x[0])
        axes.plot(x, guide, color=INK, linewidth=0.8, linestyle=":", label="slope 1/2")
        axes.set(xscale="log", yscale="log", xlabel=AXES[divergence], ylabel="norm of the bias")
        axes.legend()
    return figure


class ScoreBiasCurves(ResultPicture):
    """The biases of VaES and VaGES against each divergence, with their bounds."""

    name = "score_bias"
    draw_results = staticmethod(draw_score_bias)
