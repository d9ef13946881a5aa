"""The kernelized Stein discrepancy of data from a model."""

from __future__ import annotations

from typing import Literal, cast

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from eblvm_lit.core.tensors import in_float64, median_distance
from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.energies.base import MarginalEnergy
from eblvm_lit.evaluation.base import ExampleMetric
from eblvm_lit.methods.base import Method
from eblvm_lit.objectives.ksd import stein_kernel
from eblvm_lit.utils.quantities import Quantity

__all__ = ["SteinDiscrepancy"]

ROWS = 200


class SteinDiscrepancy(
    ExampleMetric,
    emits={"ksd": Quantity(-1)},
):
    r"""``ksd``: the U-statistic of the squared discrepancy, over all pairs of different examples.

    .. math:: \frac{1}{n (n - 1)} \sum_{i \ne j} u(v_i, v_j)

    Where data and model are the same its mean is zero, and it may be negative. See
    :func:`eblvm_lit.objectives.ksd.stein_kernel`; in float64, with the exact score.

    Args:
        bandwidth: Of the Gaussian kernel, in the units of v, or ``median``.
        max_points: More examples than this are not used: cost is quadratic.

    Example:
        >>> from types import SimpleNamespace
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.methods.parts import MethodParts
        >>> method = SimpleNamespace(parts=MethodParts(energy=GRBM(v_dim=2, h_dim=3)))
        >>> list(SteinDiscrepancy().compute(method, torch.randn(5, 2), torch.Generator()))
        ['ksd']
    """

    def __init__(
        self, *, bandwidth: PositiveFloat | Literal["median"] = "median", max_points: PositiveInt = 2000
    ) -> None:
        self.bandwidth: float | Literal["median"] = bandwidth
        self.max_points = max_points

    def applies(self, method: Method, data: ArrayDataModule) -> bool:
        """Whether the metric applies; see :meth:`Metric.applies`."""
        return isinstance(method.parts.energy, MarginalEnergy) and min(map(len, data.splits)) > 1

    @torch.no_grad()
    def compute(self, method: Method, v: Tensor, generator: torch.Generator) -> dict[str, float]:
        """The discrepancy of v; see :meth:`ExampleMetric.compute`."""
        energy = in_float64(cast(MarginalEnergy, method.parts.energy))
        v = v[: self.max_points].double()
        x = v.flatten(1)
        s = energy.score(v).flatten(1)
        b = float(median_distance(x)) if self.bandwidth == "median" else self.bandwidth
        total = 0.0
        for start in range(0, len(x), ROWS):
            rows = slice(start, start + ROWS)
            u = stein_kernel(x[rows].unsqueeze(1), s[rows].unsqueeze(1), x, s, b)
            total += float(u.sum() - u.diagonal(offset=start).sum())
        return {"ksd": total / (len(x) * (len(x) - 1))}
