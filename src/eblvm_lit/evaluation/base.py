"""The base classes of metrics, and helpers that several metrics use."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.methods.base import Method
from eblvm_lit.samplers.eval_mode import eval_mode
from eblvm_lit.utils.progress import progress_bar

__all__ = ["ExampleMetric", "Metric", "in_float64", "mean_over_rows"]

Module = TypeVar("Module", bound=nn.Module)


class Metric(ABC):
    """Numbers about a method and a split of its data.

    A metric takes the parts that it needs from :attr:`Method.parts`, and returns nothing where one is missing.

    Attributes:
        collective: Whether several processes compute it together; other metrics are computed by one of them.
    """

    collective = False

    def prepare(self, method: Method, data: ArrayDataModule) -> None:  # noqa: B027 - most need nothing
        """Raise early the errors that :meth:`evaluate` would raise at the end, such as missing files."""

    def names(self, method: Method, data: ArrayDataModule) -> Sequence[str] | None:  # noqa: ARG002 - part of the contract
        """The names of the numbers that :meth:`evaluate` will return, so that a search can be refused before it trains.

        Args:
            method: The method, not trained yet.
            data: Its data, set up.

        Returns:
            The names, without the split's prefix; empty where the metric does not apply. None if they are not known
            before, which is the default.
        """
        return None

    def describe(self, method: Method, data: ArrayDataModule) -> dict[str, str]:  # noqa: ARG002 - part of the contract
        """How numbers are computed that can be computed in several ways, in words.

        The results on the screen, ``status.json`` and the notes of a report say it.

        Args:
            method: The method.
            data: Its data.

        Returns:
            A few words by the number's name, without the split's prefix; nothing by default.
        """
        return {}

    @abstractmethod
    def evaluate(
        self, method: Method, data: ArrayDataModule, split: str, generator: torch.Generator
    ) -> dict[str, float]:
        """Evaluate a method, under ``torch.no_grad``: gradients need ``torch.enable_grad``, or ``torch.func``.

        Args:
            method: The method, on some device.
            data: Its data, set up; all splits may be used, such as the training images that samples are compared with.
            split: The split to evaluate on: ``val`` or ``test``.
            generator: Source of all randomness, on the method's device.

        Returns:
            Numbers by name, without the split's prefix; empty where the metric does not apply.
        """


class ExampleMetric(Metric):
    """Numbers about a method that are computed from all examples of one split alone.

    Attributes:
        quick: Whether :meth:`compute` takes next to no time for two examples. Its names are then found out by that.
    """

    quick = False

    def names(self, method: Method, data: ArrayDataModule) -> Sequence[str] | None:
        """The names of the numbers, if the metric is quick; see :meth:`Metric.names`."""
        if not self.quick:
            return None
        v = data.as_float(data.splits.val[:2]).to(device=method.device, dtype=method.dtype)
        with eval_mode(method), torch.no_grad():
            return list(self.compute(method, v, torch.Generator(method.device)))

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


def in_float64(module: Module) -> Module:
    """A copy in double precision, without gradients, for exact values."""
    return copy.deepcopy(module).double().requires_grad_(False)


def mean_over_rows(
    fn: Callable[[Tensor], dict[str, Tensor]], v: Tensor, rows: int, what: str | None = None
) -> dict[str, float]:
    """Means of functions of single examples, evaluated on some rows at a time and summed in float64.

    Args:
        fn: Maps (B, *event) to values of shape (B,), by name.
        v: Examples, shape (n, *event).
        rows: Largest B.
        what: Names the work where it may take long, for its progress.

    Example:
        >>> mean_over_rows(lambda v: {"total": v.sum(-1)}, torch.arange(6.0).view(3, 2), rows=2)
        {'total': 5.0}
    """
    totals: dict[str, float] = {}
    with progress_bar(what or "", len(v), visible=what is not None) as on_step:
        for chunk in v.split(rows):
            for name, values in fn(chunk).items():
                totals[name] = totals.get(name, 0.0) + float(values.double().sum())
            on_step(len(chunk))
    return {name: total / len(v) for name, total in totals.items()}
