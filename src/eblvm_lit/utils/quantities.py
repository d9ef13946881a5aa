"""What is known of a reported number, as the class that computes it declares: which way is better, and its unit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from eblvm_lit.errors import escaped

__all__ = ["FILE", "UNKNOWN", "WORDS", "Declares", "Quantity", "direction", "learn", "quantity"]

FILE = "quantities.json"  # what a run knows of its final metrics, for processes that do not import the metrics


class Quantity(NamedTuple):
    """What is known of a number.

    Attributes:
        direction: Whether it is better when higher (1), when lower (-1), or neither (0): counts, settings, errors of
            other numbers, and baselines, which are the same for all methods.
        unit: Its unit, if any.
    """

    direction: int = 0
    unit: str = ""


UNKNOWN = Quantity()
KNOWN: dict[str, Quantity] = {}  # by declared name
STORED: dict[str, Quantity] = {}  # by the name of a run's metric, which may hold any characters
WORDS: list[dict[str, str]] = []  # for the fields {...} of declared names


class Declares:
    """A class that computes numbers, and says what they are where it is defined.

    Args:
        emits: What is known of each number, as a keyword of the class, by its name without or with the split; ``*``
            stands for what the configuration or an index chooses, and ``{field}`` for a field of any network's titles.

    Example:
        >>> class Distance(Declares, emits={"distance_*": Quantity(-1, "metres")}):
        ...     pass
        >>> quantity("test/distance_moon"), direction("test/moons")
        (Quantity(direction=-1, unit='metres'), 0)
    """

    def __init_subclass__(cls, emits: Mapping[str, Quantity] | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        KNOWN.update(emits or {})


def quantity(name: str) -> Quantity:
    """What is known of a number; ``UNKNOWN`` where no imported class declares it and no run has stored it.

    Args:
        name: Its name, perhaps with the split before it and a remark in brackets behind it: ``val/fisher (last 3)``.
    """
    for key, known in KNOWN.items():
        keys = [key.format(**words) for words in WORDS] if "{" in key else [key]
        if any(fnmatchcase(one, other) for one in (_own(name), name) for other in keys):
            return known
    return STORED.get(_own(name), UNKNOWN)


def direction(name: str) -> int:
    """Whether a number is better when higher (1), when lower (-1), or neither (0); see :func:`quantity`."""
    return quantity(name).direction


def learn(folder: Path) -> bool:
    """Take over what a run has known of its final metrics, also of those of a user's package, if it has stored that.

    Raises:
        ValueError: If its file is damaged.
    """
    stored = json.loads((folder / FILE).read_text()) if (folder / FILE).is_file() else {}
    for name, (way, unit) in stored.items():
        STORED[_own(escaped(name))] = Quantity((-1, 0, 1).index(way) - 1, escaped(unit))
    return bool(stored)


def _own(name: str) -> str:
    return name.partition(" (")[0].rpartition("/")[2]
