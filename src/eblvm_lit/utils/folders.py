"""Functions that create, name and lock the folders of runs and sweeps."""

from __future__ import annotations

import fcntl
import itertools
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

from eblvm_lit.errors import ConfigError

__all__ = ["claimed", "new_folder", "prepare_folder"]


def prepare_folder(path: str | Path) -> Path:
    """Create a folder if it does not exist, and check that it is writable.

    Raises:
        ConfigError: If the folder is not writable, or the disk is full.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder) as file:  # the file has no name, so it cannot be left behind
            file.write(b"1")
    except OSError as error:
        raise ConfigError(
            f"The output folder {folder} cannot be written to ({error.strerror}): choose a folder that has room and "
            "can be written to."
        ) from None
    return folder


def new_folder(path: str | Path) -> Path:
    """Create a new folder named by a timestamp, with a numeric suffix if that name is already taken.

    A folder with any other name is created only if it does not exist.

    Raises:
        ConfigError: If it cannot be created.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as root:
        ...     [new_folder(f"{root}/2026-01-01/12-00-00").name for _ in range(3)]
        ['12-00-00', '12-00-00_1', '12-00-00_2']
    """
    first = Path(path)
    if not re.fullmatch(r"\d\d-\d\d-\d\d", first.name):
        return prepare_folder(first)
    prepare_folder(first.parent)
    folder = first
    for i in itertools.count(1):
        try:
            folder.mkdir()  # if several processes try to create the folder, only one of them succeeds
            break
        except FileExistsError:
            folder = first.with_name(f"{first.name}_{i}")
    return prepare_folder(folder)


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes during the ``with`` block; the lock ends if this process dies.

    On a file system without locks, no process is kept out.

    Raises:
        ConfigError: If another process has claimed the folder.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, claimed(Path(folder)), claimed(Path(folder)):
        ...     pass
        Traceback (most recent call last):
        eblvm_lit.errors.ConfigError: ... is in use by another process: ...
    """
    held = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{folder} is in use by another process: wait until that ends, or choose another folder."
            ) from None
        except OSError:  # the file system has no locks, so continue without one
            pass
        yield
    finally:
        os.close(held)
