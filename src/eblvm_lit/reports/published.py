"""Published numbers, looked up by the configuration of a run."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from omegaconf import OmegaConf

from eblvm_lit.evaluation.directions import direction
from eblvm_lit.utils.printing import printable

__all__ = ["Published", "direction", "find_published"]


UNITS = {
    "trainer.max_steps": "{:,} iterations",
    "method.optimizer.lr": "learning rate {:g}",
    "method.energy.network.rectified_shortcut": "rectified_shortcut {}",
}


@dataclass(frozen=True)
class Published:
    """A published number.

    Attributes:
        value: The number.
        source: The paper and the table.
        differs: How the run was trained otherwise than published; empty where the two can be compared.
    """

    value: float
    source: str
    differs: str = ""


@functools.cache
def _entries() -> tuple[Mapping[str, Any], ...]:
    papers = OmegaConf.create((files(__package__) / "published.yaml").read_text())
    return tuple(entry for paper in OmegaConf.to_container(papers).values() for entry in paper)


def find_published(config: Mapping[str, Any]) -> dict[str, Published]:
    """The published numbers for the method, the data set and the settings of a run.

    Args:
        config: The resolved configuration by dotted path.

    Returns:
        Numbers by metric, each of which says whether the run has the published length and learning rate. If several
        entries of ``published.yaml`` match, the first one wins.

    Example:
        >>> find_published({"data._target_": "eblvm_lit.data.digits.Digits"})
        {}
    """
    found: dict[str, Published] = {}
    for entry in _entries():
        if all(_fits(config.get(path), wanted) for path, wanted in entry["when"].items()):
            differs = _differs(config, entry["trained"])
            for metric, value in entry["values"].get(config.get(entry["by"]), {}).items():
                found.setdefault(metric, Published(value, entry["source"], differs))
    return found


def _differs(config: Mapping[str, Any], trained: Mapping[str, float]) -> str:
    """What sets a run apart from the published one.

    Example:
        >>> _differs({"trainer.max_steps": 300, "method.optimizer.lr": 0.1}, {"trainer.max_steps": 20_000})
        'published: 20,000 iterations; this run: 300'
        >>> _differs({"trainer.max_steps": "many"}, {"trainer.max_steps": 20_000})  # of a folder from elsewhere
        'published: 20,000 iterations; this run: many'
    """
    other = [path for path, value in trained.items() if config.get(path) != value]
    published = ", ".join(UNITS[path].format(trained[path]) for path in other)
    own = ", ".join(_own(config.get(path)) for path in other)
    return f"published: {published}; this run: {own}" if other else ""


def _own(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}"
    return "unknown" if value is None else printable(value, 40)


def _fits(value: Any, wanted: Any) -> bool:
    return value in wanted if isinstance(wanted, list) else value == wanted
