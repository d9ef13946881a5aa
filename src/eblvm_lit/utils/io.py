"""Functions that write files atomically, and report errors such as a full disk in a message for the user."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from eblvm_lit.errors import DataError

__all__ = [
    "PARTIAL",
    "copy_whole",
    "json_text",
    "read_arrays",
    "read_cached",
    "replacing",
    "write_json",
    "write_text",
    "write_whole",
]

log = logging.getLogger(__name__)

# the pattern of the names of temporary files, which a process leaves behind if it is killed while writing
PARTIAL = ".*.[0-9]*.eblvm_lit.tmp"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path in a file's folder, and replace the file with the temporary one if the block succeeds.

    Args:
        path: The file; its folder is created.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "a.txt"
        ...     _ = path.write_text("before")
        ...     with suppress(KeyboardInterrupt), replacing(path) as partial:
        ...         _ = partial.write_text("aft")
        ...         raise KeyboardInterrupt
        ...     path.read_text(), os.listdir(folder)
        ('before', ['a.txt'])
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # the name contains the process id, because several runs may write the same file of a shared cache
    partial = path.with_name(f".{path.name}.{os.getpid()}.eblvm_lit.tmp")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        with suppress(OSError):  # in a read-only folder this fails, too, but the first error is more useful
            partial.unlink(missing_ok=True)


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file atomically: the file appears only when all of its content is on the disk.

    Args:
        path: The file; its folder is created.
        write: A function that writes the content to an open file.

    Raises:
        DataError: If the file cannot be written; an earlier version stays intact.

    Example:
        >>> write_whole(Path("/dev/null/cache/a.npz"), lambda file: file.write(b"1"))
        Traceback (most recent call last):
        eblvm_lit.errors.DataError: /dev/null/cache/a.npz could not be written (...): choose ...
    """
    try:
        with replacing(path) as partial, partial.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
    except (OSError, RuntimeError) as error:  # torch.save raises a RuntimeError on a full disk
        reason = getattr(error, "strerror", None) or error
        raise DataError(
            f"{path} could not be written ({reason}): choose a folder with room that can be written to; earlier files "
            "are intact."
        ) from error


def read_cached(path: Path, read: Callable[[Path], Any]) -> Any | None:
    """Read a cached file; return None if it is missing, or, after a warning, if it is damaged.

    Args:
        path: The file.
        read: A function that reads the file, and raises any exception if its content is not as the caller wrote it.

    Example:
        >>> read_cached(Path("nowhere.npz"), read_arrays) is None
        True
    """
    if path.exists():
        try:
            return read(path)
        except Exception as error:  # the errors of numpy, zipfile, pickle and torch have no common base class
            log.warning("%s is damaged (%s) and is made again.", path, " ".join(str(error).split()) or "it is empty")
    return None


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read all arrays of an ``.npz`` file by name; wrong checksums and pickled objects raise an error."""
    with np.load(path) as file:
        return dict(file)


def copy_whole(source: Path, path: Path) -> None:
    """Copy a file atomically: the copy appears only when it is complete.

    Raises:
        DataError: If the copy cannot be written.
    """
    with source.open("rb") as file:
        write_whole(path, lambda target: shutil.copyfileobj(file, target))


def json_text(content: Mapping[str, Any]) -> str:
    """Return a mapping as JSON with sorted keys, in the format of a run's files.

    Example:
        >>> json_text({"b": 1.5, "a": 2}).split()
        ['{', '"a":', '2,', '"b":', '1.5', '}']
    """
    return json.dumps(content, indent=2, sort_keys=True) + "\n"


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a mapping atomically to a JSON file, with sorted keys.

    Raises:
        DataError: If the file cannot be written.
    """
    write_text(path, json_text(content))


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically: the file appears only when it is complete.

    Raises:
        DataError: If the file cannot be written.
    """
    write_whole(path, lambda file: file.write(text.encode()))
