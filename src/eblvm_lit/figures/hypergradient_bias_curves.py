"""A figure of the bias of the unrolled hypergradient against N and K."""

from __future__ import annotations

import re
from collections.abc import Mapping

from matplotlib.figure import Figure

from eblvm_lit.figures.final_metrics import ResultPicture
from eblvm_lit.figures.style import new_figure, styled

__all__ = ["BiasCurves", "draw_bias"]


@styled
def draw_bias(metrics: Mapping[str, float]) -> Figure | None:
    """Draw what :class:`~eblvm_lit.evaluation.studies.hypergradient_bias.HypergradientBias` found.

    Args:
        metrics: Numbers by name, with or without a split's prefix.

    Returns:
        The figure; None without such numbers.

    Example:
        >>> draw_bias({"test/hypergradient_bias_k5_n0": 1.0, "test/phi_distance_k5": 2.0}).axes[0].get_yscale()
        'log'
    """
    biases: dict[str, dict[int, float]] = {}
    distances: dict[int, float] = {}
    for name, value in metrics.items():
        if match := re.search(r"hypergradient_bias_(optimum|k\d+)_n(\d+)$", name):
            biases.setdefault(match[1], {})[int(match[2])] = value
        elif match := re.search(r"phi_distance_k(\d+)$", name):
            distances[int(match[1])] = value
    if not biases:
        return None
    figure = new_figure(8, 3.4)
    left, right = figure.subplots(1, 2)
    left.set_title("bias of the hypergradient")
    for start, row in sorted(biases.items(), key=lambda item: (len(item[0]), item[0])):
        label = r"$\phi^0 = \phi^*$" if start == "optimum" else f"K = {start[1:]}"
        left.plot(*zip(*sorted(row.items()), strict=True), marker="o", label=label)
    left.set(yscale="log", xlabel="unrolled steps N", ylabel="relative error")
    left.legend()
    right.set_title(r"distance of $\phi$ from $\phi^*$")
    right.plot(*zip(*sorted(distances.items()), strict=True), marker="o")
    right.set(xlabel="lower steps K", ylabel=r"$\|\phi^0 - \phi^*\|$")
    return figure


class BiasCurves(ResultPicture):
    """The bias against N, one curve a K, and the distance of phi from its optimum against K."""

    name = "hypergradient_bias"
    draw_results = staticmethod(draw_bias)
