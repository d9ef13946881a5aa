"""Functions that print without buffering and also write the printed text to the log file of the run."""

from __future__ import annotations

import logging
import multiprocessing
from pathlib import Path

from rich.console import Console, RenderableType

from eblvm_lit.utils.run_files import COMMAND

__all__ = ["RunLog", "is_worker", "record", "say", "show"]

# Hydra's job_logging connects this logger only to the log file, because the functions below print its messages.
PRINTED = logging.getLogger("eblvm_lit.printed")
PRINTED.propagate = False


class RunLog(logging.FileHandler):
    """The log file of a run; in the folder of an earlier run, lines are kept in memory until the new run has started.

    So a start that is refused leaves the log of an earlier run unchanged. The lines in memory are written after
    ``config.yaml`` is written, at the start of a run, or after ``evaluation.json`` is written, at the end of an
    evaluation.

    Args:
        filename: The path of the log file.
    """

    def __init__(self, filename: str) -> None:
        super().__init__(filename, delay=True)
        used = {path.name for path in Path(filename).parent.glob("*")} - {Path(filename).name, COMMAND}
        self._before = self._records() if used else None
        self._waiting: list[logging.LogRecord] = []

    def _records(self) -> list[int]:
        files = [Path(self.baseFilename).with_name(name) for name in ("config.yaml", "evaluation.json")]
        return [file.stat().st_mtime_ns for file in files if file.is_file()]

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record to the file once the run has started; until then, keep the record in memory."""
        self._waiting.append(record)
        while self._waiting and self._records() != self._before:
            super().emit(self._waiting.pop(0))


def record(text: str) -> None:
    """Write a text into the log file of the run, if the run has a log file."""
    PRINTED.info("%s", text if "\n" not in text else f"\n{text}")


def say(text: str) -> None:
    """Print a text without buffering, and write it to the log file of the run.

    Example:
        >>> say("log Z by AIS: 100 of 1,999")
        log Z by AIS: 100 of 1,999
    """
    print(text, flush=True)
    record(text)


def show(*parts: RenderableType) -> None:
    """Print texts and rich tables without buffering, and write them to the log file; texts are never wrapped.

    Example:
        >>> show("results in", "  outputs/2026-01-01/10-00-00")
        results in
          outputs/2026-01-01/10-00-00
    """
    # use a new console, because rich's shared console may belong to another terminal
    console = Console(record=True, markup=False, emoji=False, highlight=False)
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str))
    console.file.flush()
    record("\n".join(line.rstrip() for line in console.export_text().splitlines()))


def is_worker() -> bool:
    """Return whether this process is a worker of a parallel sweep, whose workers share one terminal.

    Example:
        >>> is_worker()
        False
    """
    return multiprocessing.current_process().name != "MainProcess"
