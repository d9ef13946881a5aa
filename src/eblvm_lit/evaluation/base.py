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
    """The base class of metrics: numbers that evaluate a method on one split of its data.

    A metric reads the model's parts (energy, posterior, ...) from :attr:`Method.parts`. If a part that the metric needs
    is missing, :meth:`applies` is false or :meth:`evaluate` returns no numbers. The class declares for each of its
    numbers the unit and whether higher or lower values are better: see :class:`~eblvm_lit.utils.quantities.Declares`. A
    number that is not declared has no unit and no better direction.

    Attributes:
        collective: Whether all processes compute the metric together; if false, only one of them computes it.
        needs: A description of the models and the data to which the metric applies, for the page of all metrics.
    """

    collective = False
    needs = "any method"

    def prepare(self, method: Method, data: ArrayDataModule) -> None:
        """Check before training that :meth:`evaluate` has all it needs; raise an error if, say, a file is missing."""

    def describe(self, method: Method, data: ArrayDataModule) -> dict[str, str]:
        """Name the estimator that computes the metric's numbers, if there are several; the table of results shows it.

        Args:
            method: The method.
            data: The method's data.

        Returns:
            A dictionary from the number's name, without the split's prefix, to a few words; empty by default.
        """
        return {}

    def figure(self) -> Figure | None:
        """Draw the results of the last evaluation; the run saves the figure under the metric's name.

        A metric with a figure must be ``collective``: one process draws all figures, and needs the results for this.

        Returns:
            The figure; None before the first evaluation, and by default, for metrics without a figure.
        """
        return None

    @abstractmethod
    def evaluate(
        self, method: Method, data: ArrayDataModule, split: str, generator: torch.Generator
    ) -> dict[str, float]:
        """Evaluate a method on one split of its data; the metric must apply to the method.

        This method is called under ``torch.no_grad``: code that needs gradients uses ``torch.enable_grad`` or
        ``torch.func``.

        Args:
            method: The method, on any device.
            data: The method's data, after ``setup``. The metric may read all splits, for example the training images
                with which samples are compared.
            split: The split to evaluate on: ``val`` or ``test``.
            generator: Source of all randomness, on the method's device.

        Returns:
            A dictionary from names, without the split's prefix, to numbers; empty if the metric does not apply.
        """


class ExampleMetric(Metric):
    """The base class of metrics that need only the examples of the evaluated split."""

    def evaluate(
        self, method: Method, data: ArrayDataModule, split: str, generator: torch.Generator
    ) -> dict[str, float]:
        """Evaluate a method on a split; see :meth:`Metric.evaluate`."""
        v = data.as_float(getattr(data.splits, split))
        return self.compute(method, v.to(device=method.device, dtype=method.dtype), generator)

    @abstractmethod
    def compute(self, method: Method, v: Tensor, generator: torch.Generator) -> dict[str, float]:
        """Compute the metric from the examples of a split.

        Args:
            method: The method, on any device.
            v: All examples of the split, on the method's device, shape (n, *event), floats.
            generator: Source of all randomness, on the same device.

        Returns:
            A dictionary from names, without the split's prefix, to numbers; empty if the metric does not apply.
        """


def mean_over_rows(fn: Callable[[Tensor], dict[str, Tensor]], v: Tensor, rows: int) -> dict[str, float]:
    """Average per-example values over all examples, chunk by chunk to save memory, with sums in float64.

    Args:
        fn: A function that maps examples, shape (B, *event), to a dictionary of values, each of shape (B,).
        v: Examples, shape (n, *event).
        rows: Largest number B of examples for which ``fn`` is called at once.

    Example:
        >>> mean_over_rows(lambda v: {"total": v.sum(-1)}, torch.arange(6.0).view(3, 2), rows=2)
        {'total': 5.0}
    """
    totals: dict[str, float] = {}
    for chunk in v.split(rows):
        for name, values in fn(chunk).items():
            totals[name] = totals.get(name, 0.0) + float(values.double().sum())
    return {name: total / len(v) for name, total in totals.items()}
