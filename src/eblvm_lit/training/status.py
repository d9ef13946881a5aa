"""The file `status.json`: the state of a run, the reason of a failure, its duration and its machine."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from eblvm_lit.errors import DataError
from eblvm_lit.utils.interrupts import hold
from eblvm_lit.utils.io import json_text, write_json
from eblvm_lit.utils.plain_files import read_json

__all__ = ["FAILED", "FINISHED", "INTERRUPTED", "RUNNING", "STATUS", "Notes", "has_finished", "read_status", "recorded"]

log = logging.getLogger(__name__)

STATUS = "status.json"
RUNNING, FINISHED, FAILED, INTERRUPTED = "running", "finished", "failed", "interrupted"


class Notes(dict[str, Any]):
    """The content of ``status.json``; the run adds entries.

    Args:
        folder: The existing run folder.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(state=RUNNING, started=datetime.now(UTC).isoformat(timespec="seconds"))
        self.folder, self._begin = folder, time.monotonic()

    def conclude(self, error: BaseException | None) -> None:
        """Write that the run has ended, even on a disk that has become full.

        Args:
            error: What has ended it; None if it has finished.
        """
        self["seconds"] = round(time.monotonic() - self._begin, 3)
        self["state"] = FINISHED if error is None else _state(error)
        if error is not None:
            self["reason"] = _reason(error)
        try:
            _write(self.folder, self)
        except DataError as failure:
            try:
                self._write_in_place()
            except OSError:  # the error of the run itself is more useful, and is raised
                log.error("%s %s still says %r.", failure, STATUS, RUNNING)

    def _write_in_place(self) -> None:
        """Overwrite the file of the start, whose blocks a full disk still has."""
        with (self.folder / STATUS).open("r+b") as file:
            room = 512 * os.fstat(file.fileno()).st_blocks
            brief = {key: self[key] for key in ("state", "started", "seconds")}
            texts = [json_text(content).encode() for content in (self, brief)]
            file.write(next(text for text in texts if len(text) <= room or text is texts[-1]))
            file.truncate()
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def recorded(folder: Path) -> Iterator[Notes]:
    """Maintain ``status.json`` during a run: first running, then finished, failed or interrupted, with the reason.

    The file of a killed run keeps the state running; it never says finished.

    Args:
        folder: The existing run folder.

    Yields:
        The final content of the file; the run may add entries.

    Raises:
        DataError: At the start, if the file cannot be written.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with recorded(folder) as notes:
        ...     notes["device"] = "cpu"
        ...     (folder / "metrics.json").write_text("{}"), read_status(folder)["state"], has_finished(folder)
        (2, 'running', False)
        >>> read_status(folder)["state"], read_status(folder)["device"], has_finished(folder)
        ('finished', 'cpu', True)
    """
    notes = Notes(folder)
    _write(folder, notes)
    try:
        yield notes
    except BaseException as error:
        with hold():  # a signal that comes now would leave the state running
            notes.conclude(error)
        raise
    with hold():
        notes.conclude(None)


def _write(folder: Path, notes: Mapping[str, Any]) -> None:
    """Write the file, in the first process only."""
    from pytorch_lightning.utilities import rank_zero_only  # slow to import, and readers of the file do not need it

    if rank_zero_only.rank == 0:
        write_json(folder / STATUS, notes)


def _state(error: BaseException) -> str:
    told_to_stop = not isinstance(error, Exception) or hasattr(error, "exit_code")
    return INTERRUPTED if told_to_stop else FAILED


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    ours = type(error).__module__.startswith("eblvm_lit.")  # messages for the user need no class name
    return text if ours and text else f"{type(error).__name__}: {text}".rstrip(": ")


def read_status(folder: Path) -> dict[str, Any]:
    """The content of ``status.json``; empty if the file does not exist, as for runs of earlier versions.

    Raises:
        DataError: If the file is damaged.
    """
    path = folder / STATUS
    try:
        status = read_json(path)
    except FileNotFoundError:
        return {}
    if not isinstance(status, Mapping) or not isinstance(status.get("state"), str):
        raise DataError(f"{path} is damaged: it does not say the state of a run.")
    return dict(status)


def has_finished(folder: Path) -> bool:
    """Whether a run has written its final metrics and has not been restarted since."""
    return (folder / "metrics.json").is_file() and read_status(folder).get("state", FINISHED) == FINISHED
