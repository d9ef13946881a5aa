"""The KL divergence between two-dimensional data and a model, with log Z by quadrature."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from eblvm_lit.core.tensors import by_rows, in_float64
from eblvm_lit.data.base import ArrayDataModule, Window
from eblvm_lit.data.blobs import Blobs
from eblvm_lit.data.toy import ToyDataModule
from eblvm_lit.energies.base import Energy, MarginalEnergy
from eblvm_lit.energies.quadrature import MAX_LATENTS, QuadratureMarginal
from eblvm_lit.errors import ConfigError
from eblvm_lit.evaluation.base import Metric
from eblvm_lit.methods.base import Method
from eblvm_lit.utils.quantities import Quantity

__all__ = ["PlaneGrid", "PlaneQuadrature"]

ROWS = 10_000  # the largest number of points whose free energies are computed at a time
# Points beyond this fraction of the grid's half-width count as its border, which should contain almost no mass.
OUTER = 0.9
# Searches for modes outside of the grid start in a square that is WIDER times as wide as the grid. A search has N_STEPS
# steps. Each step tries all moves in STEPS, and makes the move to the lowest free energy. Moves are in units of the
# width of the data's window and shrink linearly to zero, so that a search can move by up to 15 widths of the window.
WIDER = 5
N_STEPS = 100
STEPS = 0.3 * torch.tensor([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]], dtype=torch.float64)
log = logging.getLogger(__name__)


class PlaneGrid(NamedTuple):
    """A grid of equal cells that covers the data's window and an area around it.

    Attributes:
        points: The cells' centres, shape (S, 2), float64.
        area: The area of one cell.
        inner: Whether each cell is inside the window, shape (S,).
        outer: Whether each cell is in the grid's border, its outermost tenth, shape (S,).

    Example:
        >>> grid = PlaneGrid.around(((0.0, 1.0), (0.0, 1.0)), n_cells=6, scale=3)
        >>> len(grid.points), int(grid.inner.sum()), round(grid.area, 4), round(float(grid.points.min()), 4)
        (324, 36, 0.0278, -0.9167)
    """

    points: Tensor
    area: float
    inner: Tensor
    outer: Tensor

    @classmethod
    def around(cls, bounds: Window, n_cells: int, scale: int) -> PlaneGrid:
        """Build a grid with n_cells x n_cells cells in the window; the grid is ``scale`` times as wide as the window.

        ``scale`` is odd.
        """
        low, high = (torch.tensor(ends, dtype=torch.float64) for ends in zip(*bounds, strict=True))
        n = n_cells * scale
        axis = (2 * torch.arange(n, dtype=torch.float64) + 1) / n - 1
        square = torch.cartesian_prod(axis, axis)
        points = (low + high + scale * (high - low) * square) / 2
        distance = square.abs().amax(1)
        return cls(points, float((high - low).prod()) / n_cells**2, distance < 1 / scale, distance > OUTER)


class PlaneQuadrature(
    Metric,
    emits={
        "quadrature_log_likelihood": Quantity(1, "nats", "the mean of log p(v), with Z summed on a grid"),
        "kl": Quantity(-1, "nats", "the divergence KL(p_data || p) from the known density of the data"),
        "mode_weights_error": Quantity(
            -1, "", "the total variation distance of the modes' masses from their true weights"
        ),
    },
):
    r"""The divergence KL(p_data || p) and the mean log-likelihood of a two-dimensional model, with Z summed on a grid.

    .. math:: \log Z = \log \sum_s a\, e^{-F(v_s)}, \quad
        \mathrm{KL} = \sum_s a\, p_D(v_s) \bigl( \log p_D(v_s) + F(v_s) + \log Z \bigr)

    v_s are the centres of cells of area a: n x n cells in the data's window, and more around it. If p is smooth, the
    error of such a sum decreases faster than any power of a: it is 1e-8 for cells as wide as the standard deviation of
    the narrowest mode. The metric computes ``quadrature_log_likelihood`` of the split; ``kl`` if the density of the
    data is known; and, for :class:`~eblvm_lit.data.blobs.Blobs`, ``mode_weights_error``: each point of the plane
    belongs to the nearest mode, and the error is the total variation distance between the model's masses of the modes
    and their true, equal weights. The metric applies to models with a tractable free energy, and to models with one to
    three real latents, which are integrated by a sum on another grid.

    If the grid does not contain almost all of the model's mass, the numbers would be too good: they are left out, with
    a warning. There are two checks. First, the outermost tenth of the grid must contain little mass. Second, searches
    that descend F start at the centre of each window of a tiling that is five times as wide as the grid; if some end
    outside of the grid, the mass of the windows in which they end must be small, too. These checks miss a mode outside
    of the grid to which no search descends, for example one that is much narrower than the window and surrounded by a
    plateau.

    Args:
        n_cells: The number n of cells in the window along each axis.
        scale: The width of the grid divided by the width of the window, an odd number.
        tolerance: Largest allowed share of the mass in the outermost tenth of the grid and in windows outside of it,
            and of p(h|v) at the outermost nodes of the grid of latents.
        half_width: Half the width of the grid of latents.
        n_nodes: Number of nodes of the grid of latents along each axis, an odd number.

    Example:
        >>> from types import SimpleNamespace
        >>> from eblvm_lit.data.blobs import TwoBlobs
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.methods.parts import MethodParts
        >>> data, method = TwoBlobs(), SimpleNamespace(parts=MethodParts(energy=GRBM(v_dim=2, h_dim=3)))
        >>> data.setup()
        >>> list(PlaneQuadrature(n_cells=60).evaluate(method, data, "test", torch.Generator()))
        ['quadrature_log_likelihood', 'kl', 'mode_weights_error']
    """

    needs = "two-dimensional points, and a tractable F(v) or one to three real latents"

    def __init__(
        self,
        *,
        n_cells: PositiveInt = 210,
        scale: PositiveInt = 3,
        tolerance: PositiveFloat = 1e-3,
        half_width: PositiveFloat = 8.0,
        n_nodes: PositiveInt = 41,
    ) -> None:
        self.n_cells = n_cells
        self.scale = scale
        self.tolerance = tolerance
        self.half_width = half_width
        self.n_nodes = n_nodes

    def applies(self, method: Method, data: ArrayDataModule) -> bool:
        """Return whether the metric applies to a method and its data; see :meth:`Metric.applies`."""
        energy = method.parts.energy
        summed = isinstance(energy, Energy) and energy.continuous and 1 <= energy.h_dim <= MAX_LATENTS
        return data.window is not None and (isinstance(energy, MarginalEnergy) or summed)

    @torch.no_grad()
    def evaluate(
        self, method: Method, data: ArrayDataModule, split: str, generator: torch.Generator
    ) -> dict[str, float]:
        """Compute the numbers for a split; see :meth:`Metric.evaluate`."""
        energy = cast(Energy, method.parts.energy)
        grid = PlaneGrid.around(cast(Window, data.window), self.n_cells, self.scale)
        v = data.as_float(getattr(data.splits, split)).double()
        try:
            model = self._marginal(energy, v)
        except ConfigError as error:
            log.warning("kl and quadrature_log_likelihood are left out: %s", error)
            return {}
        device = next(model.parameters()).device

        def minus_free_energy(v: Tensor) -> Tensor:
            return -by_rows(model.free_energy, ROWS, v.to(device)).cpu()

        minus_f = minus_free_energy(grid.points)
        log_z = self.log_partition(minus_free_energy, minus_f, cast(Window, data.window), grid)
        if log_z is None:
            return {}
        found = {"quadrature_log_likelihood": float(minus_free_energy(v).mean()) - log_z - data.log_unit_of_v}
        log_d = data.log_density(grid.points[grid.inner]) if isinstance(data, ToyDataModule) else None
        if log_d is not None:
            p_d = log_d.exp()
            found["kl"] = float((p_d * (log_d - minus_f[grid.inner] + log_z))[p_d > 0].sum() / p_d.sum())
        if isinstance(data, Blobs):
            found["mode_weights_error"] = self._weights_error(data, (minus_f - log_z).exp() * grid.area, grid.points)
        return found

    def log_partition(
        self, minus_free_energy: Callable[[Tensor], Tensor], minus_f: Tensor, bounds: Window, grid: PlaneGrid
    ) -> float | None:
        """Compute log Z by summing exp(-F) over a grid; return None, with a warning, if the grid misses too much mass.

        ``minus_f`` has the values of -F at the grid's points, shape (S,).
        """
        log_z, outer = (float(terms.logsumexp(0)) + math.log(grid.area) for terms in (minus_f, minus_f[grid.outer]))
        share = math.exp(outer - log_z) if math.isfinite(log_z) else math.nan
        if share <= self.tolerance:
            share += self._share_outside(minus_free_energy, log_z, bounds, grid)
        if share <= self.tolerance:
            return log_z
        log.warning(
            "kl and quadrature_log_likelihood are left out: the outermost tenth of the grid and modes outside of it "
            "have %.1e of the model's mass, more than %g; exp(-F) has no finite integral, or metrics.quadrature.scale "
            "is too small.",
            share,
            self.tolerance,
        )
        return None

    def _share_outside(
        self, minus_free_energy: Callable[[Tensor], Tensor], log_z: float, bounds: Window, grid: PlaneGrid
    ) -> float:
        """Search for modes outside of the grid; return the share of the model's mass in windows around these modes."""
        low, high = (torch.tensor(ends, dtype=torch.float64) for ends in zip(*bounds, strict=True))
        width = high - low
        x = PlaneGrid.around(bounds, 1, WIDER * self.scale).points
        for i in range(N_STEPS):
            near = x.unsqueeze(1) + (1 - i / N_STEPS) * width * STEPS
            x = near[torch.arange(len(x)), minus_free_energy(near.flatten(0, 1)).view(-1, len(STEPS)).argmax(1)]
        # Keep an end point x of a search only if a window with the constant free energy F(x) would have enough mass.
        enough = minus_free_energy(x) + width.log().sum() > log_z + math.log(self.tolerance)
        windows = ((x[enough] - (low + high) / 2) / width).round().unique(dim=0)
        shifts = windows[windows.abs().amax(1) > self.scale / 2] * width
        masses = [minus_free_energy(grid.points[grid.inner] + shift).logsumexp(0) for shift in shifts]
        outside = torch.stack([torch.tensor(-math.inf), *masses]).logsumexp(0) + math.log(grid.area)
        return float((outside - log_z).sigmoid())

    @staticmethod
    def _weights_error(data: Blobs, masses: Tensor, points: Tensor) -> float:
        centres = torch.tensor(data.centres).to(points)
        nearest = by_rows(lambda v: torch.cdist(v, centres).argmin(1), ROWS, points)
        shares = torch.bincount(nearest, masses, minlength=len(centres))
        return 0.5 * float((shares - 1 / len(centres)).abs().sum())

    def _marginal(self, energy: Energy, v: Tensor) -> MarginalEnergy:
        """Return the model in float64; if F(v) is not tractable, the returned model sums over a grid of latents."""
        energy = in_float64(energy)
        if isinstance(energy, MarginalEnergy):
            return energy
        marginal = QuadratureMarginal(energy=energy, half_width=self.half_width, n_nodes=self.n_nodes)
        marginal.check(v[:ROWS].to(next(energy.parameters()).device), self.tolerance)
        return marginal
