"""The base class of figures of a run's final metrics."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from matplotlib.figure import Figure

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.figures.base import Picture
from eblvm_lit.methods.base import Method

__all__ = ["ResultPicture"]

RESULTS = ("evaluation.json", "metrics.json")


class ResultPicture(Picture):
    """A figure of the final metrics in the run's folder; a subclass defines :attr:`draw_results`.

    Args:
        folder: The run's folder, whose final metrics are drawn.

    Attributes:
        draw_results: Maps metrics by name to the figure, or to None where the metrics that it needs are missing.
    """

    draw_results: Callable[[dict[str, float]], Figure | None]

    def __init__(self, *, folder: str) -> None:
        self.folder = Path(folder)

    def draw(self, method: Method, data: ArrayDataModule, generator: torch.Generator) -> Figure | None:
        """Draw it; see :meth:`Picture.draw`."""
        for name in RESULTS:
            path = self.folder / name
            if path.is_file():
                return self.draw_results(json.loads(path.read_text()))
        return None
