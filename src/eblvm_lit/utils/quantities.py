"""The unit and the meaning of each reported number, and whether higher is better, as declared by its class."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from eblvm_lit.errors import escaped

__all__ = ["FILE", "UNKNOWN", "WORDS", "Declares", "Quantity", "direction", "learn", "quantity"]

FILE = "quantities.json"  # stores units, and whether higher is better, for processes that do not import the metrics


class Quantity(NamedTuple):
    """The unit and the meaning of a reported number, and whether higher or lower values are better.

    Attributes:
        direction: 1 if higher values are better, -1 if lower ones are, and 0 if neither: for counts, settings, standard
            errors of other numbers, and baselines, which are the same for all methods.
        unit: The unit, if any.
        meaning: What the number is, in a few words, for the page of all metrics.
    """

    direction: int = 0
    unit: str = ""
    meaning: str = ""


UNKNOWN = Quantity()
KNOWN: dict[str, Quantity] = {}  # what classes declare, by the name of a metric or a pattern of names
STORED: dict[str, Quantity] = {}  # what runs have stored, by the name of a metric
WORDS: list[dict[str, str]] = []  # values for the fields {...} in declared names


class Declares:
    """The base class of metrics and other classes that declare the numbers they report by a class argument, ``emits``.

    Args:
        emits: What is declared of each number, by its name with or without the split. In a name, ``*`` stands for
            a part that depends on the configuration or an index, and ``{field}`` for a field in the titles of any
            feature network.

    Attributes:
        emits: What the class itself declares, without its bases.

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
