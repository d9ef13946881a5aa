"""Parts of a run that may not apply to its method and data, and the line that says which of them are left out."""

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
    """A metric or a figure."""

    def applies(self, method: Method, data: ArrayDataModule) -> bool:  # noqa: ARG002 - of the contract
        """Whether it can be computed or drawn; a run names, before its first iteration, the parts that cannot.

        The default metrics and figures always apply. They give no number and draw nothing where they have none.

        Args:
            method: The method.
            data: Its data, set up.
        """
        return True


Part = TypeVar("Part", bound=MayNotApply)


def applicable(what: str, parts: Mapping[str, Part], method: Method, data: ArrayDataModule) -> dict[str, Part]:
    """Select the parts that apply to a method and its data; the log names the others.

    Args:
        what: What the parts are, for the log.
        parts: The parts by name.
        method: The method.
        data: Its data, set up.

    Example:
        >>> applicable("metrics", {"a": MayNotApply()}, None, None)
        {'a': <eblvm_lit.data.applicable.MayNotApply object at ...>}
    """
    others = [name for name, part in parts.items() if not part.applies(method, data)]
    if others:
        kinds = type(method).__name__, type(data).__name__
        log.warning("These %s do not apply to %s on %s, and are left out: %s.", what, *kinds, ", ".join(others))
    return {name: part for name, part in parts.items() if name not in others}
