"""The file `status.json`: the state of a run, the reason of a failure, its duration and its machine."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from eblvm_lit.errors import ConfigError, DataError
from eblvm_lit.utils.io import write_json
from eblvm_lit.utils.plain_files import read_json

__all__ = ["FAILED", "FINISHED", "INTERRUPTED", "RUNNING", "STATUS", "has_finished", "read_status", "recorded"]

log = logging.getLogger(__name__)

STATUS = "status.json"
RUNNING, FINISHED, FAILED, INTERRUPTED = "running", "finished", "failed", "interrupted"


@contextmanager
def recorded(folder: Path) -> Iterator[dict[str, Any]]:
    """Maintain ``status.json`` during a run: first running, then finished, failed or interrupted, with the reason.

    The file of a killed run keeps the state running; it never says finished.

    Args:
        folder: The existing run folder.

    Yields:
        The final content of the file; the run may add entries.

    Raises:
        ConfigError: If the file cannot be written.

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
    notes: dict[str, Any] = {"state": RUNNING, "started": datetime.now(UTC).isoformat(timespec="seconds")}
    begin = time.monotonic()
    try:
        _write(folder, notes)
    except OSError as error:
        raise ConfigError(f"{folder / STATUS} cannot be written ({error.strerror}).") from None
    try:
        yield notes
        notes["state"] = FINISHED
    except BaseException as error:
        notes |= {"state": _state(error), "reason": _reason(error)}
        raise
    finally:
        notes["seconds"] = round(time.monotonic() - begin, 3)
        try:
            _write(folder, notes)
        except OSError as error:  # for example on a full disk: the error of the run itself is more useful
            log.error("%s cannot be written (%s).", folder / STATUS, error.strerror)


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
