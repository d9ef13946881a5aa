"""Whether a run has finished: its final metrics say so."""

from __future__ import annotations

from pathlib import Path

__all__ = ["FAILED", "FINISHED", "INTERRUPTED", "STATUS", "has_finished", "read_status"]

STATUS = ".hydra/overrides.yaml"  # each job of a sweep has it
FINISHED, FAILED, INTERRUPTED = "finished", "failed", "unfinished"


def read_status(folder: Path) -> dict[str, str]:
    """The state of a run by its files."""
    return {"state": FINISHED if has_finished(folder) else INTERRUPTED}


def has_finished(folder: Path) -> bool:
    """Whether a run has written its final metrics; a run that resumes in its folder removes them first."""
    return (folder / "metrics.json").is_file()
