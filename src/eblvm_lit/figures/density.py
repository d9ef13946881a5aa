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
from eblvm_lit.energies.noise_conditional import MarginalAtLevel
from eblvm_lit.figures.base import Picture, new_figure, plane, window_in_units
from eblvm_lit.methods.base import Method

__all__ = ["Density", "density_on_grid"]

COLOURS = "magma"


def cell_centres(bounds: Window, n: int) -> Tensor:
    """Compute the centres of n x n cells that tile a window, shape (n, n, 2), float64; axis 0 is y, axis 1 is x."""
    x, y = (low + (torch.arange(n, dtype=torch.float64) + 0.5) * ((high - low) / n) for low, high in bounds)
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)


@torch.no_grad()
def density_on_grid(energy: MarginalEnergy, bounds: Window, n: int, max_enumerated: int = 20) -> Tensor:
    r"""Compute the density of a two-dimensional model, :math:`p(v) = e^{-F(v)} / Z`, on a grid.

    Z is exact if :func:`exact_log_partition` can compute it; otherwise it is a sum over a grid on a window of nine
    times the area.

    Args:
        energy: The model.
        bounds: The window, ((x0, x1), (y0, y1)).
        n: Number of the window's cells along each axis; the density is computed at their centres.
        max_enumerated: Largest number of binary latents for which Z is computed by enumeration.

    Returns:
        The density, shape (n, n), float64, on the CPU; axis 0 is y, axis 1 is x.

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
    """A figure of the densities of two-dimensional data and of the model, in the same window and colour scale.

    The left panel is a histogram of the training points, the right panel the density of the model. A good model has the
    same bright regions and as little mass between them. A bright region that is missing at the right is a mode that the
    model has lost; a bridge between two regions is mass that the objective hardly sees.

    Args:
        n_cells: Number of cells along each axis of the grid on which the model's density is drawn.
        n_bins: Number of bins along each axis of the data's histogram.

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
        """Draw the figure if the data have a window and the model has a free energy; see :meth:`Picture.draw`."""
        energy = method.parts.energy
        window = data.window
        if window is None or not isinstance(energy, MarginalEnergy):
            return None
        area = math.exp(data.log_unit_of_v)  # area of one unit of v, in the units of the data
        observed = self._histogram(data.splits.train, window) / area
        model = density_on_grid(energy, window, self.n_cells) / area
        shown = window_in_units(data)
        figure = new_figure(7.6, 3.6)
        model_name = "noise-conditional model" if isinstance(energy, MarginalAtLevel) else type(energy).__name__
        names = (f"data: {len(data.splits.train):,} points", f"{model_name}: {energy.h_dim} latent units")
        panels = plane(figure, shown, names, data.column_names)
        style = {"origin": "lower", "cmap": COLOURS, "vmin": 0, "vmax": self._brightest(observed, model)}
        for panel, density in zip(panels, (observed, model), strict=True):
            image = panel.imshow(density.numpy(), extent=(*shown[0], *shown[1]), aspect=panel.get_aspect(), **style)
        # The colour bar is an inset of the panel, because only insets have exactly the panel's height.
        bar = figure.colorbar(image, cax=panels[1].inset_axes((1.05, 0, 0.05, 1)), extend="max")
        bar.set_label("$p(v)$")
        return figure

    def _histogram(self, v: Tensor, bounds: Window) -> Tensor:
        """Compute a histogram of the data v as a density, shape (n_bins, n_bins); axis 0 is y, axis 1 is x."""
        edges = [torch.linspace(*bound, self.n_bins + 1, dtype=torch.float64) for bound in bounds]
        counts = torch.histogramdd(v.double().cpu(), edges).hist
        area = math.prod((high - low) / self.n_bins for low, high in bounds)
        return counts.T / (len(v) * area)

    @staticmethod
    def _brightest(observed: Tensor, model: Tensor) -> float:
        """Compute the upper end of the colour scale from quantiles of both densities.

        The quantile of the data is lower, because the counts of the fullest bins are random.
        """
        bins = observed[observed > 0]
        return max(float(part.quantile(q)) for part, q in ((bins, 0.99), (model.flatten(), 0.999)) if len(part))
