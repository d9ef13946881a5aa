"""The base class of loggers that follow a run from its start to its results."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers.logger import Logger
from pytorch_lightning.utilities import rank_zero_only

from eblvm_lit.training.provenance import Job

__all__ = ["RunLogger", "closing", "figure_tag", "of_runs"]


class RunLogger(Logger):
    """A Lightning logger that is also told about the start, the figures and the results of a run.

    All of these methods are optional.
    """

    def resume(self, checkpoint: Mapping[str, Any], path: Path) -> None:
        """Continue the log of a resumed run; called before :meth:`begin`.

        Args:
            checkpoint: The content of the checkpoint, which is untrusted.
            path: The file of the checkpoint, in the folder of the earlier part.
        """

    def begin(self, job: Job, config: Mapping[str, Any]) -> None:
        """Start the log.

        Args:
            job: The run's name, experiment and sweep.
            config: The configuration, in plain containers.
        """

    def log_figures(self, paths: Sequence[Path], iteration: int) -> None:
        """Log figures.

        Args:
            paths: Their files, as PNG.
            iteration: The iteration that they show.
        """

    def conclude(self, metrics: Mapping[str, float], checkpoints: Sequence[Path]) -> None:
        """Log the results of a finished run.

        Args:
            metrics: The final metrics.
            checkpoints: The checkpoint files of the run.
        """

    def close(self, *, failed: bool) -> None:
        """Close the log, whether the run has finished or failed."""


def figure_tag(path: Path, iteration: int) -> str:
    """The name under which a figure is logged, the same at all iterations.

    Example:
        >>> figure_tag(Path("figures/density.png"), 600), figure_tag(Path("figures/density_000600.png"), 600)
        ('figures/density', 'figures/density')
    """
    return "figures/" + re.sub(rf"_0*{iteration}$", "", path.stem)


def of_runs(loggers: Sequence[Logger]) -> list[RunLogger]:
    """The loggers that are RunLoggers; none in all processes but the first."""
    if rank_zero_only.rank:
        return []
    return [logger for logger in loggers if isinstance(logger, RunLogger)]


@contextmanager
def closing(loggers: Sequence[Logger]) -> Iterator[None]:
    """Close loggers at the end of a block: an open W&B run would receive the metrics of the next job."""
    failed = True
    try:
        yield
        failed = False
    finally:
        for logger in of_runs(loggers):
            logger.close(failed=failed)
