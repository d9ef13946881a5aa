"""What every run took, and on what."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from eblvm_lit.reports.groups import Group
from eblvm_lit.reports.runs import SPEED, Run
from eblvm_lit.reports.unfinished import Unfinished

__all__ = ["HEADER", "ledger", "total_time"]

NOTED = ("device", "threads", "host", "torch", "python", "commit")
HEADER = ("run", "state", "data", "method", "seed", "iterations", "time", "iterations/s", *NOTED)


def ledger(groups: Sequence[Group], unfinished: Sequence[Unfinished], root: Path) -> list[list[str]]:
    """A table of all runs; empty cells where a run has not said it.

    Args:
        groups: The finished ones.
        unfinished: The others.
        root: Folders are shown relative to it.

    Returns:
        A header and a row a run.
    """
    rows = []
    for group in groups:
        for run in group.runs:
            known = [group.data, group.label, run.config.get("seed"), run.metrics.get("iteration")]
            rate = run.metrics.get(SPEED)
            rows.append([_folder(run.folder, root), "finished", *known, *_noted(run.status, rate)])
    for job in unfinished:
        rows.append([_folder(job.folder, root), job.state, "", "", "", "", *_noted(job.status)])
    return [list(HEADER), *([_text(cell) for cell in row] for row in rows)]


def _folder(folder: Path, root: Path) -> str:
    return os.path.relpath(folder, root)


def _noted(status: Mapping[str, Any], rate: float | None = None) -> list[Any]:
    return [duration(status.get("seconds")), None if rate is None else f"{rate:.3g}", *map(status.get, NOTED)]


def _text(cell: Any) -> str:
    return "" if cell is None else f"{cell:g}" if isinstance(cell, float) else str(cell)


def duration(seconds: Any) -> str:
    """Hours, minutes and seconds; empty where nobody has counted.

    Example:
        >>> duration(3661.7), duration(None)
        ('1:01:02', '')
    """
    counted = isinstance(seconds, int | float) and 0 <= seconds < 1e9
    return str(timedelta(seconds=round(seconds))) if counted else ""


def total_time(runs: Sequence[Run], unfinished: Sequence[Unfinished]) -> str:
    """How long all runs took that have counted it, in words; empty where none has."""
    entries = [*runs, *unfinished]
    counted = [time for entry in entries if duration(time := entry.status.get("seconds"))]
    part = "" if len(counted) == len(entries) else f" in {len(counted)} of the {len(entries)} runs"
    return f"{duration(sum(counted))} of computing{part}" if counted else ""
