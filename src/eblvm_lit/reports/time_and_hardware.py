"""The table of the time, the hardware and the versions of each run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from eblvm_lit.reports.groups import Group
from eblvm_lit.reports.runs import SPEED, Run
from eblvm_lit.reports.unfinished import Unfinished
from eblvm_lit.utils.printing import printable

__all__ = ["HEADER", "time_and_hardware", "total_time"]

RECORDED = ("device", "threads", "host", "torch", "python", "commit")
HEADER = ("run", "state", "data", "method", "seed", "iterations", "time", "iterations/s", *RECORDED)


def time_and_hardware(groups: Sequence[Group], unfinished: Sequence[Unfinished], root: Path) -> list[list[str]]:
    """A table of all runs; a cell is empty if the run did not record it.

    Args:
        groups: The finished runs.
        unfinished: The other runs.
        root: The folder that paths are shown relative to.

    Returns:
        A header, and one row per run.
    """
    rows = []
    for group in groups:
        for run in group.runs:
            known = [group.data, group.label, run.config.get("seed"), run.metrics.get("iteration")]
            rate = run.metrics.get(SPEED)
            rows.append([_folder(run.folder, root), "finished", *known, *_recorded(run.status, rate)])
    for job in unfinished:
        rows.append([_folder(job.folder, root), job.state, "", "", "", "", *_recorded(job.status)])
    return [list(HEADER), *([_text(cell) for cell in row] for row in rows)]


def _folder(folder: Path, root: Path) -> str:
    return printable(os.path.relpath(folder, root))


def _recorded(status: Mapping[str, Any], rate: float | None = None) -> list[Any]:
    return [duration(status.get("seconds")), None if rate is None else f"{rate:.3g}", *map(status.get, RECORDED)]


def _text(cell: Any) -> str:
    return "" if cell is None else f"{cell:g}" if isinstance(cell, float) else printable(cell)


def duration(seconds: Any) -> str:
    """A time as hours, minutes and seconds; empty if it is unknown.

    Example:
        >>> duration(3661.7), duration(None)
        ('1:01:02', '')
    """
    counted = isinstance(seconds, int | float) and 0 <= seconds < 1e9
    return str(timedelta(seconds=round(seconds))) if counted else ""


def total_time(runs: Sequence[Run], unfinished: Sequence[Unfinished]) -> str:
    """The total time of all runs that recorded theirs, in words; empty if none did."""
    entries = [*runs, *unfinished]
    counted = [time for entry in entries if duration(time := entry.status.get("seconds"))]
    part = "" if len(counted) == len(entries) else f" in {len(counted)} of the {len(entries)} runs"
    return f"{duration(sum(counted))} of computing{part}" if counted else ""
