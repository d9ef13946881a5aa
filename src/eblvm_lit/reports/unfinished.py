"""Runs that have no results: failed, interrupted, killed, or still running."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eblvm_lit.reports.reading import read_yaml
from eblvm_lit.runtime.status import FAILED, INTERRUPTED, read_status

__all__ = ["UNFINISHED", "Unfinished", "read_unfinished", "sentences"]

UNFINISHED = "unfinished"
KILLED = "It was killed, or is still running."


@dataclass(frozen=True)
class Unfinished:
    """A run without results.

    Attributes:
        folder: Where it lies.
        state: ``failed``, ``interrupted`` or ``unfinished``.
        reason: A sentence; empty where nobody knows, as in folders of earlier versions.
        overrides: What the command line set.
        status: What it said of itself and of the machine.
    """

    folder: Path
    state: str
    reason: str
    overrides: tuple[str, ...] = ()
    status: Mapping[str, Any] = field(default_factory=dict)


def read_unfinished(folder: Path) -> Unfinished:
    """Read what a run that has not finished has left.

    Raises:
        DataError: If a file is damaged.
    """
    status, overrides = read_status(folder), read_yaml(folder / ".hydra" / "overrides.yaml")
    state = status.get("state") if status.get("state") in (FAILED, INTERRUPTED) else UNFINISHED
    reason = str(status.get("reason", "")) if state != UNFINISHED else KILLED * bool(status)
    return Unfinished(folder, state, reason, tuple(map(str, overrides or ())), status)


def sentences(unfinished: Sequence[Unfinished]) -> list[str]:
    """What the reader of a table has to know of the runs that are not in it.

    Example:
        >>> sentences([Unfinished(Path("multirun/3"), "failed", "The loss is nan.")])
        ['Unfinished or failed (no metrics.json), left out: multirun/3.', 'multirun/3: failed. The loss is nan.']
    """
    if not unfinished:
        return []
    told = [f"{job.folder}: {job.state}. {job.reason}" for job in unfinished if job.reason]
    return [f"Unfinished or failed (no metrics.json), left out: {', '.join(str(j.folder) for j in unfinished)}.", *told]
