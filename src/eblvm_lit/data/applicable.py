"""The base class of metrics and figures, and a function that selects those that apply to a run."""

from __future__ import annotations

import logging
from abc import ABC
from collections.abc import Mapping
from typing import TypeVar

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.methods.base import Method

__all__ = ["MayNotApply", "applicable"]

log = logging.getLogger(__name__)


class MayNotApply(ABC):  # noqa: B024 - the base of metrics and figures, which have abstract methods
    """The base class of metrics and figures, each of which applies only to some methods and data.

    Attributes:
        needs_labels: Whether the data must have labels.
    """

    needs_labels = False

    def applies(self, method: Method, data: ArrayDataModule) -> bool:  # noqa: ARG002 - subclasses use them
        """Return whether the metric can be computed, or the figure drawn, for a method and its data.

        A run logs, before its first iteration, which metrics cannot be computed and which figures cannot be drawn.
        Default metrics and figures are exempt: their ``applies`` returns True, and they return no number or no figure
        if they do not apply to the run.

        Args:
            method: The method.
            data: The method's data, after ``setup``.
        """
        return True


Part = TypeVar("Part", bound=MayNotApply)


def applicable(what: str, parts: Mapping[str, Part], method: Method, data: ArrayDataModule) -> dict[str, Part]:
    """Select the metrics or figures that apply to a method and its data; log the names of the others.

    Args:
        what: The word for ``parts`` in the log, such as "metrics".
        parts: The metrics or figures by name.
        method: The method.
        data: The method's data, after ``setup``.

    Example:
        >>> applicable("metrics", {"a": MayNotApply()}, None, None)
        {'a': <eblvm_lit.data.applicable.MayNotApply object at ...>}
    """
    others = [name for name, part in parts.items() if not part.applies(method, data)]
    if others:
        kinds = type(method).__name__, type(data).__name__
        unlabelled = data.labels is None and any(parts[name].needs_labels for name in others)
        hint = " (the data have no labels; of data=array data.label_key or data.label_column names them)"
        listed = ", ".join(others) + hint * unlabelled
        log.warning("These %s do not apply to %s on %s, and are left out: %s.", what, *kinds, listed)
    return {name: part for name, part in parts.items() if name not in others}
