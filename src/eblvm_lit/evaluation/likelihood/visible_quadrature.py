"""The partition function of an energy of one or two visible variables, by quadrature on a grid."""

from __future__ import annotations

import logging
import math
from itertools import pairwise

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from eblvm_lit.energies.base import MarginalEnergy
from eblvm_lit.errors import ConfigError

__all__ = ["VisibleQuadrature"]

MAX_DIM = 2
MAX_NODES = 2**22  # of a grid
GROWING_NODES = 2**18  # of a grid that still grows: the last one is refined
MAX_DOUBLINGS = 40  # of the box
RESOLVED = 0.1  # change of log Z between two grids up to which a wider box says more than a finer grid
GROWTH = 0.6  # of log Z at a doubling, in nats: log 2 where one direction is flat to infinity
ROWS = 2**15  # nodes at which F is evaluated at a time
log = logging.getLogger(__name__)


class VisibleQuadrature:
    r"""log Z of a free energy on the line or the plane, by the trapezoidal rule.

    .. math:: Z \approx \Delta^d \sum_s e^{-F(v_s)}

    The grid begins as the box of the examples, twice as wide. The box grows until next to no mass lies in its outermost
    twentieth on each side, so that even exponential tails have no more of it beyond. The grid becomes finer until every
    second node gives the same log Z. Reference: Trefethen and Weideman 2014.

    Two things are not seen: a mode that is apart from the box of the examples, whose mass is then missing; and a
    plateau so low that the box stops growing before it counts, although its integral to infinity is infinite.

    Args:
        n_nodes: Nodes of the first grid along each axis; odd.
        tolerance: Largest mass near the edge, and largest change of log Z between two grids, in nats.

    Example:
        >>> from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
        >>> model, v = GaussianLatentModel(v_dim=2, h_dim=3).double(), torch.tensor([[-1.0, 0.0], [1.0, 1.0]])
        >>> found = VisibleQuadrature(n_nodes=101).log_partition(model, v.double())
        >>> abs(found - model.log_partition().item()) < 1e-6
        True
    """

    def __init__(self, *, n_nodes: PositiveInt = 201, tolerance: PositiveFloat = 1e-6) -> None:
        self.n_nodes = n_nodes
        self.tolerance = tolerance

    @staticmethod
    def supports(energy: object) -> bool:
        """Whether it has a free energy of one or two variables."""
        return isinstance(energy, MarginalEnergy) and math.prod(energy.event_shape) <= MAX_DIM

    @torch.no_grad()
    def log_partition(self, energy: MarginalEnergy, v: Tensor) -> float:
        """log Z in nats; infinity, and a warning, where it grows with each doubling of the box as far as nodes suffice.

        Args:
            energy: The model, in float64.
            v: Examples, shape (n, *event), float64.

        Raises:
            ConfigError: The largest grid is too coarse.
        """
        rows = v.flatten(1)
        centre = (rows.amin(0) + rows.amax(0)) / 2
        half = (rows.amax(0) - rows.amin(0)).clamp(min=1e-3)
        n = self.n_nodes
        dim = rows.shape[1]
        boxes = []
        while n**dim <= MAX_NODES and len(boxes) <= MAX_DOUBLINGS:
            log_p = self._on_grid(energy, centre, half, n)
            log_sum = log_p.flatten().logsumexp(0)
            step = (2 * half / (n - 1)).log().sum()
            coarse = log_p[(slice(None, None, 2),) * dim].flatten().logsumexp(0) + dim * math.log(2)
            edge = self._edge(log_p, log_sum)
            gap = abs(float(coarse - log_sum))
            finer = 2 * n - 1
            if edge <= self.tolerance and gap <= self.tolerance:
                return float(log_sum + step)
            wider = edge > self.tolerance and (gap <= RESOLVED or edge > 0.5)
            if wider:
                boxes.append(float(log_sum + step))
                half = 2 * half
            if not wider or finer**dim <= GROWING_NODES:  # as fine as before, while that is cheap
                n = finer
        return self._without_end(boxes)

    @staticmethod
    def _without_end(boxes: list[float]) -> float:
        """Infinity where log Z kept growing from box to box.

        Raises:
            ConfigError: Where it did not.
        """
        rises = [after - before for before, after in pairwise(boxes)]
        if len(boxes) <= MAX_DOUBLINGS and (len(rises) < 3 or min(rises[-3:]) < GROWTH):
            raise ConfigError(f"log Z is not resolved by {MAX_NODES:,} nodes: raise the tolerance of the quadrature.")
        log.warning(
            "Each doubling of the box adds %.2g to log Z, up to %.2g times the width of the examples: exp(-F) seems to "
            "have no finite integral.",
            *(rises[-1], 2.0 ** len(boxes)),
        )
        return math.inf

    def _on_grid(self, energy: MarginalEnergy, centre: Tensor, half: Tensor, n: int) -> Tensor:
        """-F at the nodes, shape (n,) or (n, n)."""
        unit = torch.linspace(-1, 1, n, dtype=centre.dtype, device=centre.device)
        axes = [c + h * unit for c, h in zip(centre, half, strict=True)]
        nodes = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).view(-1, *energy.event_shape)
        return -torch.cat([energy.free_energy(x) for x in nodes.split(ROWS)]).view(*[n] * len(axes))

    @staticmethod
    def _edge(log_p: Tensor, log_z: Tensor) -> float:
        """The probability of the outermost twentieth of the nodes on each side."""
        outer = max(1, len(log_p) // 20)
        inside = log_p[(slice(outer, -outer),) * log_p.dim()]
        return float(1 - (inside.flatten().logsumexp(0) - log_z).exp())
