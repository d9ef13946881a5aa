"""What every metric offers."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn

__all__ = ["Metric", "in_float64", "mean_over_rows"]

Module = TypeVar("Module", bound=nn.Module)


class Metric(ABC):
    """Numbers about a method, computed from one whole split.

    A method shows its parts as attributes: ``energy``, and perhaps ``posterior``, ``divergence`` and
    ``objective`` (absent or None where it has none). A metric takes the parts it needs and gives nothing
    where one is missing.
    """

    @abstractmethod
    def compute(self, method: LightningModule, v: Tensor, generator: torch.Generator) -> dict[str, float]:
        """Evaluate a method.

        Args:
            method: The method, on some device.
            v: One whole split on that device, shape (n, *event), floats.
            generator: Source of all randomness, on that device.

        Returns:
            Numbers by name, without the split's prefix; empty where the metric does not apply.
        """


def in_float64(module: Module) -> Module:
    """A copy in double precision, without gradients: exact values are not lost to rounding."""
    return copy.deepcopy(module).double().requires_grad_(False)


def mean_over_rows(fn: Callable[[Tensor], dict[str, Tensor]], v: Tensor, rows: int) -> dict[str, float]:
    """Means of functions of single examples, evaluated on some rows at a time and summed in float64.

    Args:
        fn: Maps (B, *event) to values of shape (B,), by name.
        v: Examples, shape (n, *event).
        rows: Largest B.

    Example:
        >>> mean_over_rows(lambda v: {"total": v.sum(-1)}, torch.arange(6.0).view(3, 2), rows=2)
        {'total': 5.0}
    """
    totals: dict[str, float] = {}
    for chunk in v.split(rows):
        for name, values in fn(chunk).items():
            totals[name] = totals.get(name, 0.0) + float(values.double().sum())
    return {name: total / len(v) for name, total in totals.items()}
