"""The base class of figures of a run's final metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from matplotlib.figure import Figure

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.figures.base import Picture
from eblvm_lit.methods.base import Method

__all__ = ["ResultPicture"]


class ResultPicture(Picture):
    """A figure of the final metrics; a subclass defines :attr:`draw_results`.

    Attributes:
        metrics: The final metrics by name; none before the run's end.
        draw_results: Maps metrics by name to the figure, or to None where the metrics that it needs are missing.
    """

    metrics: Mapping[str, float] | None = None
    draw_results: Callable[[Mapping[str, float]], Figure | None]

    def draw(self, method: Method, data: ArrayDataModule, generator: torch.Generator) -> Figure | None:
        """Draw it; see :meth:`Picture.draw`."""
        return None if self.metrics is None else self.draw_results(self.metrics)
