"""A figure of a two-dimensional model's density beside its data."""

from __future__ import annotations

import math

import torch
from matplotlib.figure import Figure
from pydantic import PositiveInt
from torch import Tensor

from eblvm_lit.core.tensors import in_float64
from eblvm_lit.data.base import ArrayDataModule, Window
from eblvm_lit.energies.base import MarginalEnergy
from eblvm_lit.energies.log_partition import exact_log_partition
from eblvm_lit.figures.base import Picture, new_figure, plane
from eblvm_lit.methods.base import Method

__all__ = ["Density", "density_on_grid"]

COLOURS = "magma"


def cell_centres(bounds: Window, n: int) -> Tensor:
    """Centres of n x n cells that tile a window, shape (n, n, 2), float64, rows by y and columns by x."""
    x, y = (low + (torch.arange(n, dtype=torch.float64) + 0.5) * ((high - low) / n) for low, high in bounds)
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)


@torch.no_grad()
def density_on_grid(energy: MarginalEnergy, bounds: Window, n: int, max_enumerated: int = 20) -> Tensor:
    r"""Density of a model of the plane, :math:`p(v) = e^{-F(v)} / Z`, at the centres of a window's cells.

    Z is exact where :func:`exact_log_partition` gives it, else a sum over a window of nine times the area.

    Args:
        energy: The model.
        bounds: The window.
        n: Cells along each axis.
        max_enumerated: Largest number of binary latents that are enumerated.

    Returns:
        Shape (n, n), float64, on the CPU; rows by y and columns by x.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> p = density_on_grid(GRBM(v_dim=2, h_dim=3), ((-8, 8), (-8, 8)), 80)
        >>> round(p.sum().item() * 0.2 * 0.2, 3)
        1.0
    """
    model = in_float64(energy)
    device = next(energy.parameters()).device

    def minus_free_energy(window: Window) -> Tensor:
        centres = cell_centres(window, n).to(device)
        return -model.free_energy(centres.view(-1, 2)).view(n, n).cpu()

    log_z = exact_log_partition(energy, max_enumerated)
    if log_z is None:
        wide = tuple((2 * low - high, 2 * high - low) for low, high in bounds)
        cell = math.prod((high - low) / n for low, high in wide)
        log_z = float(minus_free_energy(wide).flatten().logsumexp(0)) + math.log(cell)
    return (minus_free_energy(bounds) - log_z).exp()


class Density(Picture):
    """Densities of two-dimensional data and of the model, in one window and on one colour scale.

    Args:
        n_cells: Cells of the model's grid along each axis.
        n_bins: Bins of the data's histogram along each axis.

    Example:
        >>> from types import SimpleNamespace
        >>> from eblvm_lit.data.toy import Checkerboard
        >>> from eblvm_lit.methods.parts import MethodParts
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> method, data = SimpleNamespace(parts=MethodParts(energy=GRBM(v_dim=2, h_dim=3))), Checkerboard()
        >>> data.setup()
        >>> figure = Density().draw(method, data, torch.Generator())
        >>> [panel.get_title() for panel in figure.axes]
        ['data: 60,000 points', 'GRBM: 3 latent units']
    """

    name = "density"

    def __init__(self, *, n_cells: PositiveInt = 300, n_bins: PositiveInt = 60) -> None:
        self.n_cells = n_cells
        self.n_bins = n_bins

    def draw(self, method: Method, data: ArrayDataModule, generator: torch.Generator) -> Figure | None:
        """Draw it; see :meth:`Picture.draw`. For data with a window and a model with a free energy."""
        energy = method.parts.energy
        if data.bounds is None or not isinstance(energy, MarginalEnergy):
            return None
        observed = self._histogram(data.splits.train, data.bounds)
        model = density_on_grid(energy, data.bounds, self.n_cells)
        figure = new_figure(7.6, 3.6)
        names = (
            f"data: {len(data.splits.train):,} points",
            f"{type(energy).__name__}: {energy.h_dim} latent units",
        )
        panels = plane(figure, data.bounds, names)
        style = {"origin": "lower", "cmap": COLOURS, "vmin": 0, "vmax": self._brightest(observed, model)}
        for panel, density in zip(panels, (observed, model), strict=True):
            image = panel.imshow(density.numpy(), extent=(*data.bounds[0], *data.bounds[1]), **style)
        # an inset is exactly as high as its panel
        bar = figure.colorbar(image, cax=panels[1].inset_axes((1.05, 0, 0.05, 1)), extend="max")
        bar.set_label("$p(v)$")
        return figure

    def _histogram(self, v: Tensor, bounds: Window) -> Tensor:
        """Density of the data, shape (n_bins, n_bins), rows by y and columns by x."""
        edges = [torch.linspace(*bound, self.n_bins + 1, dtype=torch.float64) for bound in bounds]
        counts = torch.histogramdd(v.double().cpu(), edges).hist
        area = math.prod((high - low) / self.n_bins for low, high in bounds)
        return counts.T / (len(v) * area)

    @staticmethod
    def _brightest(observed: Tensor, model: Tensor) -> float:
        """The upper end of the colour scale: a lower quantile for the data, whose fullest bins are random."""
        bins = observed[observed > 0]
        return max(float(part.quantile(q)) for part, q in ((bins, 0.99), (model.flatten(), 0.999)) if len(part))
