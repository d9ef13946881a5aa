"""What a run says of itself, from its first second on: ``status.json``."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from eblvm_lit.errors import ConfigError, DataError
from eblvm_lit.utils.io import write_json

__all__ = ["FAILED", "FINISHED", "INTERRUPTED", "RUNNING", "STATUS", "has_finished", "read_status", "recorded"]

log = logging.getLogger(__name__)

STATUS = "status.json"
RUNNING, FINISHED, FAILED, INTERRUPTED = "running", "finished", "failed", "interrupted"


@contextmanager
def recorded(folder: Path) -> Iterator[dict[str, Any]]:
    """Keep ``status.json`` of a run's folder: running, then finished, or failed or interrupted and why.

    A run that is killed says that it is running, and never that it has finished.

    Args:
        folder: It exists.

    Yields:
        What the file will hold in the end; the run may add to it.

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
        except OSError as error:  # as on a full disk: what the run itself has to say is worth more
            log.error("%s cannot be written (%s).", folder / STATUS, error.strerror)


def _write(folder: Path, notes: Mapping[str, Any]) -> None:
    """One process speaks for all of a run."""
    from pytorch_lightning.utilities import rank_zero_only  # takes seconds, for which readers of the file need not wait

    if rank_zero_only.rank == 0:
        write_json(folder / STATUS, notes)


def _state(error: BaseException) -> str:
    told_to_stop = not isinstance(error, Exception) or hasattr(error, "exit_code")
    return INTERRUPTED if told_to_stop else FAILED


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    ours = type(error).__module__.startswith("eblvm_lit.")  # a sentence for the user needs no class name
    return text if ours and text else f"{type(error).__name__}: {text}".rstrip(": ")


def read_status(folder: Path) -> dict[str, Any]:
    """What a run has said; empty where there is no such file, as in folders of earlier versions.

    Raises:
        DataError: If the file is damaged.
    """
    path = folder / STATUS
    try:
        status = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is damaged or cannot be read ({error}).") from None
    if not isinstance(status, Mapping) or not isinstance(status.get("state"), str):
        raise DataError(f"{path} is damaged: it does not say the state of a run.")
    return dict(status)


def has_finished(folder: Path) -> bool:
    """Whether a run has left its final metrics, and has not been begun again since."""
    return (folder / "metrics.json").is_file() and read_status(folder).get("state", FINISHED) == FINISHED
