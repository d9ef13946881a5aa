"""The table of its jobs that a sweep ends with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from eblvm_lit.errors import DataError
from eblvm_lit.evaluation.directions import direction
from eblvm_lit.training.status import STATUS, read_status
from eblvm_lit.utils.printing import PLAIN, printable
from eblvm_lit.utils.run_files import read_metrics, read_overrides

__all__ = ["Job", "read_jobs", "show_jobs"]

MOST_METRICS, MOST_ROWS = 3, 60


@dataclass(frozen=True)
class Job:
    """A job of a sweep.

    Attributes:
        name: Its folder, relative to that of the sweep.
        state: ``finished``, ``failed``, ``interrupted`` or ``running``.
        overrides: Those of its command line.
        metrics: Its final metrics; empty without results.
    """

    name: str
    state: str
    overrides: tuple[str, ...]
    metrics: Mapping[str, float]


def read_jobs(folder: Path) -> list[Job]:
    """The jobs of a sweep in their order; a damaged file of a job counts as empty.

    Args:
        folder: The folder of the sweep.
    """
    paths = [path.parents[1] for path in folder.glob(f"**/{STATUS}")]
    paths.sort(key=lambda path: (len(path.parts), len(path.name), path))
    return [_read_job(path, folder) for path in paths]


def _read_job(path: Path, folder: Path) -> Job:
    try:
        state = printable(read_status(path)["state"])
    except DataError:
        state = "damaged"
    try:
        overrides = read_overrides(path)
    except DataError:
        overrides = ()
    metrics: dict[str, float] = {}
    try:
        metrics = read_metrics(path / "metrics.json") if state == "finished" else {}
    except DataError:
        state = "damaged"
    return Job(printable(path.relative_to(folder).as_posix()), state, overrides, metrics)


def show_jobs(jobs: Sequence[Job], folder: Path, optimized: str | None = None) -> None:
    """Print a table of the jobs: the overrides in which they differ, the state, and some final metrics.

    Args:
        jobs: The jobs.
        folder: The folder of the sweep.
        optimized: The metric of ``optimized_metric``, which comes first.
    """
    console = Console(**PLAIN)
    if not console.is_terminal:  # a file has no width limit
        console.width = 10**4
    metrics = _chosen(jobs, optimized)
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    for name in ("job", "settings", "state"):
        table.add_column(name, overflow="fold")
    for name in metrics:
        table.add_column(Text(name.replace("/", "/\n", 1)), justify="right", no_wrap=True)
    settings = _differing(jobs)
    for job, text in zip(jobs[:MOST_ROWS], settings, strict=False):
        cells = [_number(job.metrics.get(name)) for name in metrics]
        table.add_row(*map(Text, (job.name, text, job.state, *cells)))
    console.print(table)
    if len(jobs) > MOST_ROWS:
        console.print(f"... and {len(jobs) - MOST_ROWS} more.")
    console.print("\nCompare them, seeds averaged and with figures:")
    command = f"  python -m eblvm_lit.reports {folder}"
    console.print(command, soft_wrap=True)


def _differing(jobs: Sequence[Job]) -> list[str]:
    """The overrides of each job that not all jobs have.

    Example:
        >>> _differing([Job(str(i), "finished", ("method=dsm", f"seed={i}"), {}) for i in range(2)])
        ['seed=0', 'seed=1']
    """
    common = set.intersection(*(set(job.overrides) for job in jobs)) if len(jobs) > 1 else set()
    return [" ".join(text for text in job.overrides if text not in common) for job in jobs]


def _chosen(jobs: Sequence[Job], optimized: str | None) -> list[str]:
    """The metrics of the table: the optimized one, then those of the test split, higher is better first."""
    there = {name for job in jobs for name in job.metrics}
    tests = [name for name in there if name.startswith("test/") and direction(name)]
    tests.sort(key=lambda name: (-direction(name), name))
    first = [optimized] if optimized in there else []
    return list(dict.fromkeys(first + tests))[:MOST_METRICS]


def _number(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, int | float) else ""
