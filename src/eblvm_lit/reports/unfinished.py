"""Runs without results: failed, interrupted, killed, or still running."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eblvm_lit.runtime.status import FAILED, INTERRUPTED, read_status
from eblvm_lit.utils.run_files import read_yaml

__all__ = ["UNFINISHED", "Unfinished", "read_unfinished", "unfinished_notes"]

UNFINISHED = "unfinished"
KILLED = "It was killed, or is still running."


@dataclass(frozen=True)
class Unfinished:
    """A run without results.

    Attributes:
        folder: The run folder.
        state: ``failed``, ``interrupted`` or ``unfinished``.
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
    status, overrides = read_status(folder), read_yaml(folder / ".hydra" / "overrides.yaml")
    state = status.get("state") if status.get("state") in (FAILED, INTERRUPTED) else UNFINISHED
    reason = str(status.get("reason", "")) if state != UNFINISHED else KILLED * bool(status)
    return Unfinished(folder, state, reason, tuple(map(str, overrides or ())), status)


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
        f"{len(unfinished)} run{'s' * (len(unfinished) > 1)} without results in {root}: {counts}.",
        *(
            f"{job.folder.relative_to(root)}: {job.state}. {' '.join(job.reason.split())}".rstrip()
            for job in unfinished
        ),
    ]
