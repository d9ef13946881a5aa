"""The table of the biases of VaES and VaGES, its metrics and its figure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from eblvm_lit.figures.style import COLOURS, INK, new_figure, styled

__all__ = ["ScoreBiasTable"]

NAMES = {"vaes": "VaES", "vages": "VaGES"}
DIVERGENCES = {"kl": "KL(q || p)", "fisher": "Fisher divergence"}
LOOKS = {"vaes": (COLOURS[0], "o"), "vages": (COLOURS[1], "s")}


class ScoreBiasTable(NamedTuple):
    """The biases of VaES and VaGES, their bounds, and the divergences of q from p, for each size of q's perturbation.

    Attributes:
        curves: Lists of numbers, one for each size in increasing order, under the keys ``vaes``, ``vages``,
            ``vaes_bound``, ``vages_bound``, ``kl`` and, for normal latents, ``fisher``.
        bound_ratio: The largest ratio of a bias to its bound.

    Example:
        >>> table = ScoreBiasTable({name: [1.0, 10.0] for name in ("kl", "vaes", "vages")}, 0.5)
        >>> table.metrics()["score_bias_kl_t1"], round(table.metrics()["score_bias_slope_vaes_kl"], 3)
        (10.0, 1.0)
        >>> table.figure().axes[0].get_xlabel()
        'KL(q || p)'
    """

    curves: dict[str, list[float]]
    bound_ratio: float

    def metrics(self) -> dict[str, float]:
        """Return all numbers of the table under their metric names."""
        points = {f"score_bias_{name}_t{i}": x for name, values in self.curves.items() for i, x in enumerate(values)}
        return {**points, **dict(self._slopes()), "score_bias_bound_ratio": self.bound_ratio}

    def _slopes(self) -> Iterator[tuple[str, float]]:
        """Compute the slopes of the biases against the divergences on log-log axes by least squares."""
        for divergence in (name for name in DIVERGENCES if name in self.curves):
            for name in NAMES:
                x, y = (torch.tensor(self.curves[key]).log() for key in (divergence, name))
                x = x - x.mean()
                yield f"score_bias_slope_{name}_{divergence}", float((x * y).sum() / x.square().sum())

    @styled
    def figure(self) -> Figure:
        """Draw the biases and their bounds against each divergence, on log-log axes."""
        panels = [divergence for divergence in DIVERGENCES if divergence in self.curves]
        figure = new_figure(4.2 * len(panels), 3.5)
        for axes, divergence in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            self._draw(axes, divergence)
        return figure

    def _draw(self, axes: Axes, divergence: str) -> None:
        x = np.array(self.curves[divergence])
        for name, label in NAMES.items():
            colour, marker = LOOKS[name]
            axes.plot(x, self.curves[name], color=colour, linestyle="-", marker=marker, label=label)
            if divergence == "kl" and f"{name}_bound" in self.curves:
                bound = self.curves[f"{name}_bound"]
                axes.plot(x, bound, color=colour, linewidth=0.9, linestyle="--", label=f"{label}, bound")
        guide = self.curves["vaes"][0] / 3 * np.sqrt(x / x[0])
        axes.plot(x, guide, color=INK, linewidth=0.8, linestyle=":", label="slope 1/2")
        axes.set(xscale="log", yscale="log", xlabel=DIVERGENCES[divergence], ylabel="norm of the bias")
        axes.legend()
