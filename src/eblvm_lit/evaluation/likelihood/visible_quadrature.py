"""The partition function of an energy of one or two visible variables, by quadrature on a grid."""

from __future__ import annotations

import logging
import math
from itertools import pairwise

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from eblvm_lit.energies.base import MarginalEnergy, is_movable
from eblvm_lit.errors import ConfigError

__all__ = ["VisibleQuadrature"]

MAX_DIM = 2
MAX_NODES = 2**22  # largest number of nodes of a grid
GROWING_NODES = 2**18  # largest number of nodes while the box is being widened; only the final box gets more nodes
MAX_DOUBLINGS = 40  # largest number of doublings of the box
# If a finer grid changes log Z by at most this many nats, the box is widened before the grid is refined further.
RESOLVED = 0.1
# log Z counts as unbounded if each of the last doublings of the box adds at least this many nats to it. A free energy
# that is constant along a line adds log 2 = 0.69 nats.
GROWTH = 0.6
ROWS = 2**15  # the largest number of nodes at which F is computed at a time
log = logging.getLogger(__name__)


class VisibleQuadrature:
    r"""The trapezoidal rule for log Z of an energy with one or two visible variables.

    .. math:: Z \approx \Delta^d \sum_s e^{-F(v_s)}

    The first grid covers a box twice as wide as the bounding box of the examples. The box is doubled until almost no
    mass lies in its outermost twentieth on each side, so that even exponential tails have almost no mass outside. The
    grid is refined until every second of its nodes gives the same log Z. Reference: Trefethen and Weideman 2014.

    The rule misses two things: the mass of a mode far from the examples; and a plateau of such low density that the box
    stops growing before the plateau's mass matters, although its integral over the whole space is infinite.

    Args:
        n_nodes: Number of nodes of the first grid along each axis, an odd number.
        tolerance: Largest share of the mass near the edge of the box, and largest change of log Z, in nats, between a
            grid and every second of its nodes.

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
        """Return whether the energy has a tractable free energy F(v) and v has one or two dimensions."""
        return is_movable(energy) and isinstance(energy, MarginalEnergy) and math.prod(energy.event_shape) <= MAX_DIM

    @torch.no_grad()
    def log_partition(self, energy: MarginalEnergy, v: Tensor) -> float:
        """Compute log Z in nats; return infinity, with a warning, if it grows with each doubling of the grid's box.

        Args:
            energy: The model, in float64.
            v: Examples, shape (n, *event), float64, whose bounding box determines the first box.

        Raises:
            ConfigError: If the largest grid is too coarse.
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
            # a widened box gets more nodes, so that their spacing stays the same, as long as this is cheap
            if not wider or finer**dim <= GROWING_NODES:
                n = finer
        return self._without_end(boxes)

    @staticmethod
    def _without_end(boxes: list[float]) -> float:
        """Return infinity, with a warning, if log Z seems unbounded or MAX_DOUBLINGS is exceeded; else raise an error.

        Raises:
            ConfigError: If neither is the case, because the grid is too coarse.
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
        """Compute the negative free energy at the nodes of a grid; it has shape (n,) or (n, n)."""
        unit = torch.linspace(-1, 1, n, dtype=centre.dtype, device=centre.device)
        axes = [c + h * unit for c, h in zip(centre, half, strict=True)]
        nodes = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).view(-1, *energy.event_shape)
        return -torch.cat([energy.free_energy(x) for x in nodes.split(ROWS)]).view(*[n] * len(axes))

    @staticmethod
    def _edge(log_p: Tensor, log_z: Tensor) -> float:
        """Compute the probability mass in the grid's margin: the outermost twentieth of the nodes on each side."""
        outer = max(1, len(log_p) // 20)
        inside = log_p[(slice(outer, -outer),) * log_p.dim()]
        return float(1 - (inside.flatten().logsumexp(0) - log_z).exp())
