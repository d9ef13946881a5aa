"""Runs without results: failed, interrupted, killed, still running, or not to be read."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eblvm_lit.errors import DataError
from eblvm_lit.training.status import FAILED, FINISHED, INTERRUPTED, read_status
from eblvm_lit.utils.printing import printable
from eblvm_lit.utils.run_files import read_overrides

__all__ = ["UNFINISHED", "UNREADABLE", "Unfinished", "read_unfinished", "unfinished_notes"]

UNFINISHED, UNREADABLE = "unfinished", "unreadable"
KILLED = "It was killed, or is still running."


@dataclass(frozen=True)
class Unfinished:
    """A run without results.

    Attributes:
        folder: The run folder.
        state: ``failed``, ``interrupted``, ``unfinished`` or ``unreadable``.
        reason: One sentence; empty if it is unknown, as for runs of earlier versions.
        overrides: The overrides of the command line.
        status: The content of ``status.json``.
    """

    folder: Path
    state: str
    reason: str
    overrides: tuple[str, ...] = ()
    status: Mapping[str, Any] = field(default_factory=dict)


def read_unfinished(folder: Path) -> Unfinished:
    """Read the files of a run that has not finished.

    Raises:
        DataError: If a file is damaged.
    """
    status, overrides = read_status(folder), read_overrides(folder)
    if status.get("state") == FINISHED:
        raise DataError(f"{folder} has finished, and its metrics.json or config.yaml is missing or of another program.")
    state = status.get("state") if status.get("state") in (FAILED, INTERRUPTED) else UNFINISHED
    reason = printable(status.get("reason", "")) if state != UNFINISHED else KILLED * bool(status)
    return Unfinished(folder, state, reason, overrides, status)


def unfinished_notes(unfinished: Sequence[Unfinished]) -> list[str]:
    """Lines on the runs that are missing from a table: how many there are and where, then one line each.

    Example:
        >>> jobs = Unfinished(Path("a/3"), "failed", "The loss is nan."), Unfinished(Path("a/5"), "unfinished", "")
        >>> unfinished_notes(jobs)
        ['2 runs without results in a: 1 failed, 1 unfinished.', '3: failed. The loss is nan.', '5: unfinished.']
    """
    if not unfinished:
        return []
    root = os.path.commonpath([job.folder.parent for job in unfinished])
    states = Counter(job.state for job in unfinished)
    counts = ", ".join(f"{states[state]} {state}" for state in sorted(states))
    return [
        f"{len(unfinished)} run{'s' * (len(unfinished) > 1)} without results in {printable(root)}: {counts}.",
        *(f"{printable(job.folder.relative_to(root))}: {job.state}. {job.reason}".rstrip() for job in unfinished),
    ]
