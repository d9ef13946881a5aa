"""Published numbers, looked up by the configuration of a run."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from omegaconf import OmegaConf

from eblvm_lit.evaluation.directions import direction

__all__ = ["Published", "direction", "find_published"]


@dataclass(frozen=True)
class Published:
    """A published number.

    Attributes:
        value: The number.
        source: The paper and the table.
    """

    value: float
    source: str


@functools.cache
def _entries() -> tuple[Mapping[str, Any], ...]:
    papers = OmegaConf.create((files(__package__) / "published.yaml").read_text())
    return tuple(entry for paper in OmegaConf.to_container(papers).values() for entry in paper)


def find_published(config: Mapping[str, Any]) -> dict[str, Published]:
    """The published numbers for the method, the data set and the settings of a run.

    Args:
        config: The resolved configuration by dotted path.

    Returns:
        Numbers by metric. If several entries of ``published.yaml`` match, the first one wins.

    Example:
        >>> find_published({"data._target_": "eblvm_lit.data.digits.Digits"})
        {}
    """
    found: dict[str, Published] = {}
    for entry in _entries():
        if all(_fits(config.get(path), wanted) for path, wanted in entry["when"].items()):
            for metric, value in entry["values"].get(config.get(entry["by"]), {}).items():
                found.setdefault(metric, Published(value, entry["source"]))
    return found


def _fits(value: Any, wanted: Any) -> bool:
    return value in wanted if isinstance(wanted, list) else value == wanted
