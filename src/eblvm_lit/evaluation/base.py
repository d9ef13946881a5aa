"""The base classes of metrics, and helpers that several metrics use."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eblvm_lit.data.applicable import MayNotApply
from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.methods.base import Method
from eblvm_lit.utils.quantities import Declares

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ExampleMetric", "Metric", "mean_over_rows"]


class Metric(Declares, MayNotApply):
    """Numbers about a method and a split of its data.

    A metric takes the parts that it needs from :attr:`Method.parts`. Where one is missing, :meth:`applies` says so, or
    it returns nothing. Its class declares which way each of its numbers is better, and their units: see
    :class:`~eblvm_lit.utils.quantities.Declares`. A number that is not declared has neither.

    Attributes:
        collective: Whether several processes compute it together; other metrics are computed by one of them.
    """

    collective = False

    def prepare(self, method: Method, data: ArrayDataModule) -> None:
        """Raise early the errors that :meth:`evaluate` would raise at the end, such as missing files."""

    def describe(self, method: Method, data: ArrayDataModule) -> dict[str, str]:
        """How numbers are computed that can be computed in several ways, in words, for the table of results.

        Args:
            method: The method.
            data: Its data.

        Returns:
            A few words by the number's name, without the split's prefix; nothing by default.
        """
        return {}

    def figure(self) -> Figure | None:
        """Draw what the last evaluation found, into a file of the metric's name among the figures of the run.

        A metric with a figure is ``collective``, because one process draws all figures.

        Returns:
            None before an evaluation, and for metrics without a figure, which is the default.
        """
        return None

    @abstractmethod
    def evaluate(
        self, method: Method, data: ArrayDataModule, split: str, generator: torch.Generator
    ) -> dict[str, float]:
        """Evaluate a method to which the metric applies.

        It is called under ``torch.no_grad``: gradients need ``torch.enable_grad``, or ``torch.func``.

        Args:
            method: The method, on some device.
            data: Its data, set up; all splits may be used, such as the training images that samples are compared with.
            split: The split to evaluate on: ``val`` or ``test``.
            generator: Source of all randomness, on the method's device.

        Returns:
            Numbers by name, without the split's prefix; empty where the metric does not apply.
        """


class ExampleMetric(Metric):
    """Numbers about a method that are computed from all examples of one split alone."""

    def evaluate(
        self, method: Method, data: ArrayDataModule, split: str, generator: torch.Generator
    ) -> dict[str, float]:
        """Evaluate a method on a split; see :meth:`Metric.evaluate`."""
        v = data.as_float(getattr(data.splits, split))
        return self.compute(method, v.to(device=method.device, dtype=method.dtype), generator)

    @abstractmethod
    def compute(self, method: Method, v: Tensor, generator: torch.Generator) -> dict[str, float]:
        """Evaluate a method on examples.

        Args:
            method: The method, on some device.
            v: One whole split on that device, shape (n, *event), floats.
            generator: Source of all randomness, on that device.

        Returns:
            Numbers by name, without the split's prefix; empty where the metric does not apply.
        """


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
