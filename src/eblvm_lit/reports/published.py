"""Published numbers, found by the configuration of a run."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from omegaconf import OmegaConf

__all__ = ["Published", "direction", "find_published"]

HIGHER = frozenset(("likelihood", "auroc", "aupr", "accuracy", "inception", "second"))
LOWER = frozenset(("fisher", "fid", "kid", "fd", "fpr95", "rmse", "ksd", "kl", "loss"))


@dataclass(frozen=True)
class Published:
    """A published number.

    Attributes:
        value: It.
        source: Paper and table.
    """

    value: float
    source: str


def direction(metric: str) -> int:
    """Which way a metric gets better: 1 up, -1 down, 0 where neither is.

    Example:
        >>> [direction(name) for name in ("test/auroc_svhn", "val/fisher (last 3)", "test/log_z")]
        [1, -1, 0]
    """
    words = set(metric.split(" ")[0].split("/")[-1].split("_"))
    return bool(words & HIGHER) - bool(words & LOWER)


@functools.cache
def _entries() -> tuple[Mapping[str, Any], ...]:
    papers = OmegaConf.create((files(__package__) / "published.yaml").read_text())
    return tuple(entry for paper in OmegaConf.to_container(papers).values() for entry in paper)


def find_published(config: Mapping[str, Any]) -> dict[str, Published]:
    """The published metrics of a method on a data set with some settings.

    Args:
        config: A run's resolved configuration by dotted path.

    Returns:
        Numbers by metric; the first entry of ``published.yaml`` that has one counts.

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
