"""A corner plot of data and samples: scatter plots of pairs of columns, and a histogram of each column."""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.figure import Figure
from pydantic import PositiveInt
from torch import Tensor

from eblvm_lit.data.base import ArrayDataModule, range_of
from eblvm_lit.draws.choice import draws_of
from eblvm_lit.figures.base import Picture, new_figure
from eblvm_lit.figures.style import COLOURS
from eblvm_lit.methods.base import Method
from eblvm_lit.samplers.dynamics import Dynamics
from eblvm_lit.samplers.sampler import Sampler

__all__ = ["Corner"]

N_BINS = 40


class Corner(Picture):
    """A corner plot of test examples and samples, in the data's units, for vectors that are not two-dimensional.

    The panel in row i and column j < i is a scatter plot of columns j and i; the diagonal panels are histograms of the
    columns. The windows contain most of the data: see :func:`~eblvm_lit.data.base.range_of`.

    Args:
        n: Number of samples, and largest number of test examples.
        max_columns: Largest number of columns; the first ones are drawn.
        sampler: The run's sampler, see :func:`~eblvm_lit.draws.choice.draws_of`.

    Example:
        >>> from types import SimpleNamespace
        >>> from eblvm_lit.data.standard_normal import StandardNormalData
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.methods.parts import MethodParts
        >>> from eblvm_lit.samplers.gibbs import Gibbs
        >>> parts, data = MethodParts(energy=GRBM(v_dim=3, h_dim=3)), StandardNormalData(v_dim=3)
        >>> data.setup()
        >>> method = SimpleNamespace(parts=parts, seed=0, device="cpu")
        >>> figure = Corner(n=50, sampler=Gibbs(n_steps=5)).draw(method, data, torch.Generator())
        >>> len(figure.axes)
        6
    """

    name = "corner"

    def __init__(
        self, *, n: PositiveInt = 2000, max_columns: PositiveInt = 6, sampler: Sampler | Dynamics | None = None
    ) -> None:
        self.n = n
        self.max_columns = max_columns
        self.sampler = sampler

    def draw(self, method: Method, data: ArrayDataModule, generator: torch.Generator) -> Figure | None:
        """Draw the figure if the data are vectors that are not two-dimensional; see :meth:`Picture.draw`."""
        if data.image_shape is not None or tuple(data.event_shape) == (2,):
            return None
        draws = draws_of(method, data, self.sampler)
        if draws is None:
            return None
        samples = draws.draw(self.n, seed=method.seed).cpu()
        shown = {"data": data.as_float(data.splits.test[: self.n]), draws.title: samples}
        d = min(self.max_columns, data.event_shape[0])
        in_units = {name: data.in_units(v)[:, :d].double() for name, v in shown.items()}
        names = data.column_names or [f"$v_{{{i + 1}}}$" for i in range(d)]
        return self._panels(in_units, list(names)[:d])

    @staticmethod
    def _panels(shown: dict[str, Tensor], names: list[str]) -> Figure:
        d = len(names)
        ranges = [range_of(column) for column in shown["data"].unbind(1)]
        figure = new_figure(1.7 * d + 1, 1.7 * d + 0.5)
        grid = figure.add_gridspec(d, d)
        for i in range(d):
            for j in range(i + 1):
                axes = figure.add_subplot(grid[i, j])
                for (name, x), colour in zip(shown.items(), COLOURS, strict=False):
                    if i == j:
                        bins = np.linspace(*ranges[i], N_BINS + 1).tolist()
                        axes.hist(x[:, i].numpy(), bins, density=True, histtype="step", color=colour, label=name)
                    else:
                        axes.scatter(x[:, j], x[:, i], s=3, color=colour, alpha=0.3, linewidths=0)
                        axes.set_ylim(ranges[i])
                axes.set_xlim(ranges[j])
                axes.label_outer()
                if i == j:
                    axes.set_yticks([])
                if i == d - 1:
                    axes.set_xlabel(names[j])
                if j == 0 and i > 0:
                    axes.set_ylabel(names[i])
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="upper right")
        return figure
