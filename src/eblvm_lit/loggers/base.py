"""Loggers that follow a run from its beginning to its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers.logger import Logger
from pytorch_lightning.utilities import rank_zero_only

from eblvm_lit.runtime.provenance import Job

__all__ = ["RunLogger", "closing", "of_runs"]


class RunLogger(Logger):
    """A logger that is also told how a run begins, what it draws and what it leaves; each of these may be ignored."""

    def resume(self, checkpoint: Mapping[str, Any], path: Path) -> None:
        """Take over what an earlier part of the run has logged; called before :meth:`begin`.

        Args:
            checkpoint: What the run goes on from. Nothing in it is trusted.
            path: Its file, in the earlier part's folder.
        """

    def begin(self, job: Job, config: Mapping[str, Any]) -> None:
        """The run begins.

        Args:
            job: What it is.
            config: Its configuration, in plain containers.
        """

    def log_figures(self, paths: Sequence[Path], iteration: int) -> None:
        """Figures have been drawn."""

    def conclude(self, metrics: Mapping[str, float], checkpoints: Sequence[Path]) -> None:
        """The run has come to its end.

        Args:
            metrics: The final ones.
            checkpoints: The files it leaves.
        """

    def close(self, *, failed: bool) -> None:
        """Nothing follows, whether the run has come to its end or not."""


def of_runs(loggers: Sequence[Logger]) -> list[RunLogger]:
    """Those among some loggers that follow runs; in the first of a run's processes alone."""
    if rank_zero_only.rank:
        return []
    return [logger for logger in loggers if isinstance(logger, RunLogger)]


@contextmanager
def closing(loggers: Sequence[Logger]) -> Iterator[None]:
    """Close loggers at the end of a block: a run that is left open would get what the next one logs."""
    failed = True
    try:
        yield
        failed = False
    finally:
        for logger in of_runs(loggers):
            logger.close(failed=failed)
