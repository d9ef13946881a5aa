"""The kernelized Stein discrepancy between held-out data and a model."""

from __future__ import annotations

import logging
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

log = logging.getLogger(__name__)


class SteinDiscrepancy(
    ExampleMetric,
    emits={"ksd": Quantity(-1, "", "the squared kernelized Stein discrepancy; 0 on average for a perfect model")},
):
    r"""The squared kernelized Stein discrepancy, ``ksd``: a U-statistic over all pairs of different examples.

    .. math:: \frac{1}{n (n - 1)} \sum_{i \ne j} u(v_i, v_j)

    If the data have the model's distribution, its expectation is zero; a single value may be negative. The kernel u is
    :func:`eblvm_lit.objectives.ksd.stein_kernel`, computed in float64 with the exact score.

    Args:
        bandwidth: Bandwidth of the Gaussian kernel, in the units of v; ``median`` is the median distance between
            examples.
        max_points: Largest number of examples, because the cost grows quadratically; the first ones are used.

    Example:
        >>> from types import SimpleNamespace
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.methods.parts import MethodParts
        >>> method = SimpleNamespace(parts=MethodParts(energy=GRBM(v_dim=2, h_dim=3)))
        >>> list(SteinDiscrepancy().compute(method, torch.randn(5, 2), torch.Generator()))
        ['ksd']
    """

    needs = "a tractable F(v) of real v"

    def __init__(
        self, *, bandwidth: PositiveFloat | Literal["median"] = "median", max_points: PositiveInt = 2000
    ) -> None:
        self.bandwidth: float | Literal["median"] = bandwidth
        self.max_points = max_points

    def applies(self, method: Method, data: ArrayDataModule) -> bool:
        """Return whether the metric applies to a method and its data; see :meth:`Metric.applies`."""
        energy = method.parts.energy
        return isinstance(energy, MarginalEnergy) and not energy.binary_visible and min(map(len, data.splits)) > 1

    @torch.no_grad()
    def compute(self, method: Method, v: Tensor, generator: torch.Generator) -> dict[str, float]:
        """Compute the discrepancy between the examples v and the model; see :meth:`ExampleMetric.compute`."""
        energy = in_float64(cast(MarginalEnergy, method.parts.energy))
        v = v[: self.max_points].double()
        x = v.flatten(1)
        s = energy.score(v).flatten(1)
        b = float(median_distance(x)) if self.bandwidth == "median" else self.bandwidth
        if b == 0:
            log.warning("ksd is left out: more than half of the examples are equal. Set its bandwidth to a number.")
            return {}
        total = 0.0
        for start in range(0, len(x), ROWS):
            rows = slice(start, start + ROWS)
            u = stein_kernel(x[rows].unsqueeze(1), s[rows].unsqueeze(1), x, s, b)
            total += float(u.sum() - u.diagonal(offset=start).sum())
        return {"ksd": total / (len(x) * (len(x) - 1))}
