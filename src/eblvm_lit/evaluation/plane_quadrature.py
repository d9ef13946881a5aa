"""The divergence of a model of the plane from the truth, with log Z by quadrature."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from eblvm_lit.core.functional import by_rows
from eblvm_lit.data.base import ArrayDataModule, Window
from eblvm_lit.data.toy import ToyDataModule
from eblvm_lit.energies.base import Energy, MarginalEnergy
from eblvm_lit.energies.quadrature import MAX_LATENTS, QuadratureMarginal
from eblvm_lit.errors import ConfigError
from eblvm_lit.evaluation.base import Metric, in_float64
from eblvm_lit.methods.base import Method

__all__ = ["PlaneGrid", "PlaneQuadrature"]

ROWS = 10_000  # of the free energy at a time
log = logging.getLogger(__name__)


class PlaneGrid(NamedTuple):
    """Points of the plane and the area that each stands for, from inner window to outer frames.

    Example:
        >>> grid = PlaneGrid.around(((0.0, 1.0), (0.0, 1.0)), n_cells=6, n_frames=2)
        >>> round(float(grid.log_area.exp().sum()), 6), bool((grid.log_area[grid.inner].exp() * 36 - 1).abs().max() < 1e-9)
        (81.0, True)
    """

    points: Tensor
    log_area: Tensor
    inner: Tensor
    outer: Tensor

    @classmethod
    def around(cls, bounds: Window, n_cells: int, n_frames: int) -> PlaneGrid:
        """The cells of a window, and of frames around it, each of three times the size of what it surrounds.

        Args:
            bounds: The window.
            n_cells: n, a multiple of 3: the window has n x n cells; a frame has cells of three times their size.
            n_frames: Number of frames.

        Returns:
            Centres (S, 2), logarithms of areas (S,), and which are in the window and in the outermost frame, (S,).
        """
        middle, half = (torch.tensor(ends, dtype=torch.float64) for ends in zip(*map(_middle_and_half, bounds), strict=True))
        axis = (2 * torch.arange(n_cells, dtype=torch.float64) + 1) / n_cells - 1
        square = torch.cartesian_prod(axis, axis)
        around = square[square.abs().amax(1) > 1 / 3]
        rings = [square, *(3.0**k * around for k in range(1, n_frames + 1))]
        level = torch.cat([torch.full((len(x),), k) for k, x in enumerate(rings)])
        log_cell = math.log(float(half.prod())) + 2 * math.log(2 / n_cells)
        return cls(middle + half * torch.cat(rings), log_cell + level * math.log(9), level == 0, level == n_frames)


def _middle_and_half(ends: tuple[float, float]) -> tuple[float, float]:
    low, high = ends
    return (low + high) / 2, (high - low) / 2


class PlaneQuadrature(Metric):
    r"""KL(p_data || p) and the mean log-likelihood of a model of the plane, whose Z is a sum over a grid.

    .. math:: \log Z = \log \sum_s a_s e^{-F(v_s)}, \quad
        \mathrm{KL} = \sum_s a_s\, p_D(v_s) \bigl( \log p_D(v_s) + F(v_s) + \log Z \bigr)

    v_s are the centres of cells of area a_s: n x n in the data's window, and coarser ones in frames around it. Gives
    ``kl`` where the density of the data is known, and ``quadrature_log_likelihood`` of the split. Applies to models with
    a free energy, and to those of up to three real latents, which are summed over a grid, too. Where the grid does not
    hold the model's mass, the numbers would be too good, and are left out with a warning.

    Args:
        n_cells: n, a multiple of 3. Cells of less than a standard deviation of the narrowest mode are exact to rounding.
        n_frames: Frames around the window, each of three times the size.
        tolerance: Largest share of the mass that the outermost frame, or of latents the outermost nodes, may hold.
        half_width: Half the width of the grid of latents.
        n_nodes: Its nodes along each axis, an odd number.

    Raises:
        ConfigError: For a number below its range.

    Example:
        >>> from types import SimpleNamespace
        >>> from eblvm_lit.data.blobs import TwoBlobs
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.methods.base import MethodParts
        >>> data, method = TwoBlobs(), SimpleNamespace(parts=MethodParts(energy=GRBM(v_dim=2, h_dim=3)))
        >>> data.setup()
        >>> list(PlaneQuadrature(n_cells=60).evaluate(method, data, "test", torch.Generator()))
        ['quadrature_log_likelihood', 'kl']
    """

    def __init__(
        self,
        *,
        n_cells: int = 300,
        n_frames: int = 2,
        tolerance: float = 1e-3,
        half_width: float = 8.0,
        n_nodes: int = 41,
    ) -> None:
        if n_cells < 3 or n_cells % 3 or n_frames < 1 or not tolerance > 0:
            raise ConfigError(
                "Quadrature of the plane needs n_cells that is a multiple of 3, n_frames >= 1 and tolerance > 0, not "
                f"{n_cells}, {n_frames} and {tolerance}."
            )
        self.n_cells, self.n_frames, self.tolerance = n_cells, n_frames, tolerance
        self.half_width, self.n_nodes = half_width, n_nodes

    def names(self, method: Method, data: ArrayDataModule) -> Sequence[str]:
        """The names of the numbers; see :meth:`Metric.names`."""
        energy = method.parts.energy
        if data.bounds is None or not (isinstance(energy, MarginalEnergy) or _few_latents(energy)):
            return []
        known = isinstance(data, ToyDataModule) and data.log_density(data.splits.val[:1].double()) is not None
        return ["quadrature_log_likelihood", *(["kl"] if known else [])]

    @torch.no_grad()
    def evaluate(
        self,
        method: Method,
        data: ArrayDataModule,
        split: str,
        generator: torch.Generator,  # noqa: ARG002 - nothing is random
    ) -> dict[str, float]:
        """The numbers of a split; see :meth:`Metric.evaluate`."""
        if not (names := self.names(method, data)) or data.bounds is None:
            return {}
        grid, energy = PlaneGrid.around(data.bounds, self.n_cells, self.n_frames), method.parts.energy
        v = data.as_float(getattr(data.splits, split)).double()
        try:
            model = self._marginal(energy, v)
        except ConfigError as error:
            log.warning("kl and quadrature_log_likelihood are left out: %s", error)
            return {}
        device = next(model.parameters()).device
        minus_f = -by_rows(model.free_energy, ROWS, grid.points.to(device)).cpu()
        log_z = self.log_partition(minus_f, grid)
        if log_z is None:
            return {}
        found = {"quadrature_log_likelihood": float(-by_rows(model.free_energy, ROWS, v.to(device)).mean()) - log_z}
        if isinstance(data, ToyDataModule) and "kl" in names:
            found["kl"] = self._kl(data, grid, minus_f - log_z)
        return found

    def log_partition(self, minus_f: Tensor, grid: PlaneGrid) -> float | None:
        """log Z of -F (S,) at the points of a grid; None, and a warning, where the grid does not hold the mass."""
        terms = minus_f + grid.log_area
        log_z, outer = float(terms.logsumexp(0)), float(terms[grid.outer].logsumexp(0))
        share = math.exp(outer - log_z) if math.isfinite(log_z) else math.nan
        if share <= self.tolerance:
            return log_z
        log.warning(
            "kl and quadrature_log_likelihood are left out: the outermost frame of the grid holds %.1e of the model's "
            "mass, more than %g; the model may have no finite integral, or metrics.quadrature.n_frames is too small.",
            share,
            self.tolerance,
        )
        return None

    def _marginal(self, energy: Energy | None, v: Tensor) -> MarginalEnergy:
        """The model in float64, its latents summed over a grid where they have to be."""
        energy = in_float64(energy)  # pyright: ignore[reportArgumentType]
        if isinstance(energy, MarginalEnergy):
            return energy
        marginal = QuadratureMarginal(energy=energy, half_width=self.half_width, n_nodes=self.n_nodes)
        marginal.check(v[:ROWS].to(next(energy.parameters()).device), self.tolerance)
        return marginal

    @staticmethod
    def _kl(data: ToyDataModule, grid: PlaneGrid, log_p: Tensor) -> float:
        log_d = data.log_density(grid.points[grid.inner])
        assert log_d is not None  # names() has asked
        mass = (log_d + grid.log_area[grid.inner]).exp()
        return float((mass * (log_d - log_p[grid.inner]))[mass > 0].sum() / mass.sum())


def _few_latents(energy: Energy | None) -> bool:
    return isinstance(energy, Energy) and energy.continuous and 1 <= energy.h_dim <= MAX_LATENTS
