"""The unit and the meaning of each reported number, and whether higher is better, as its class declares them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from eblvm_lit.errors import escaped

__all__ = ["FILE", "UNKNOWN", "WORDS", "Declares", "Quantity", "direction", "learn", "quantity"]

FILE = "quantities.json"  # has units, and whether higher is better, for processes that have not imported the metrics


class Quantity(NamedTuple):
    """The unit and the meaning of a reported number, and whether higher or lower values are better.

    Attributes:
        direction: 1 if higher values are better, -1 if lower ones are, and 0 if neither: for counts, settings, standard
            errors of other numbers, and baselines, which are the same for all methods.
        unit: The unit, if any.
        meaning: A description of the number in a few words, for the page of all metrics.
    """

    direction: int = 0
    unit: str = ""
    meaning: str = ""


UNKNOWN = Quantity()
KNOWN: dict[str, Quantity] = {}  # the quantities that classes declare, by the name of a metric or a pattern of names
STORED: dict[str, Quantity] = {}  # the quantities that runs have stored in their folders, by the name of a metric
WORDS: list[dict[str, str]] = []  # dicts of the values that replace the fields {...} in declared names


class Declares:
    """The base class of metrics and other classes that declare their numbers by the class argument ``emits``.

    Args:
        emits: The unit, the meaning and the direction of each number that the class reports, by the number's name with
            or without the split. In a name, ``*`` stands for a part that depends on the configuration or an index, and
            ``{field}`` for a field in the titles of any feature network.

    Attributes:
        emits: The numbers that the class itself declares, without the numbers of its base classes.

    Example:
        >>> class Distance(Declares, emits={"distance_*": Quantity(-1, "metres", "the distance to a place")}):
        ...     pass
        >>> quantity("test/distance_moon"), direction("test/moons")
        (Quantity(direction=-1, unit='metres', meaning='the distance to a place'), 0)
    """

    emits: ClassVar[Mapping[str, Quantity]] = {}

    def __init_subclass__(cls, emits: Mapping[str, Quantity] | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.emits = dict(emits or {})
        KNOWN.update(emits or {})


def quantity(name: str) -> Quantity:
    """Return the unit, meaning and direction of a reported number; ``UNKNOWN`` if no class or run has declared them.

    Args:
        name: The name, perhaps with the split before it and a remark in brackets behind it: ``val/fisher (last 3)``.
    """
    for key, known in KNOWN.items():
        keys = [key.format(**words) for words in WORDS] if "{" in key else [key]
        if any(fnmatchcase(one, other) for one in (_own(name), name) for other in keys):
            return known
    return STORED.get(_own(name), UNKNOWN)


def direction(name: str) -> int:
    """Return 1 if higher values of a reported number are better, -1 if lower ones are, and 0 if neither is declared."""
    return quantity(name).direction


def learn(folder: Path) -> bool:
    """Read the units of a run's final metrics, and whether higher is better, from the file in the run's folder.

    The file includes metrics of user packages. Returns whether the run has stored any units.

    Raises:
        ValueError: If the file is damaged.
    """
    stored = json.loads((folder / FILE).read_text()) if (folder / FILE).is_file() else {}
    for name, (way, unit) in stored.items():
        STORED[_own(escaped(name))] = Quantity((-1, 0, 1).index(way) - 1, escaped(unit))
    return bool(stored)


def _own(name: str) -> str:
    return name.partition(" (")[0].rpartition("/")[2]
