"""Reading of files that may be anything: only regular files, and only as many bytes as the caller can use."""

from __future__ import annotations

import os
from pathlib import Path

from eblvm_lit.errors import DataError

__all__ = ["LARGEST", "check_regular", "read_bounded"]

LARGEST = 1 << 28  # bytes of one unpacked data file; the largest published one, of SVHN, has 225 MB


def check_regular(path: Path, cure: str) -> None:
    """Refuse what is not a file: opening a pipe waits for ever, and a device has no end.

    Args:
        path: The file, or a link to it.
        cure: What to do, for the error.

    Raises:
        DataError: There is no regular file.

    Example:
        >>> check_regular(Path("/dev/null"), "put a file there.")
        Traceback (most recent call last):
        eblvm_lit.errors.DataError: /dev/null is a pipe, a socket or a device, not a file: put a file there.
    """
    if os.path.isfile(path):  # unlike Path.is_file, it raises no error for a name that is too long
        return
    if os.path.isdir(path):
        raise DataError(f"{path} is a folder, not a file: {cure}")
    if os.path.exists(path):
        raise DataError(f"{path} is a pipe, a socket or a device, not a file: {cure}")
    if os.path.islink(path):
        raise DataError(f"{path} is a link that leads to no file: {cure}")
    raise DataError(f"{path} is missing: {cure}")


def read_bounded(path: Path, cure: str, largest: int = LARGEST) -> bytes:
    """Read a regular file of bounded size.

    Args:
        path: The file.
        cure: What to do with another one, for the error.
        largest: Its largest size in bytes.

    Raises:
        DataError: It is no regular file, is larger, or cannot be read.

    Example:
        >>> read_bounded(Path(__file__), "take a smaller one.", largest=10)
        Traceback (most recent call last):
        eblvm_lit.errors.DataError: .../foreign_files.py has more than 10 bytes: take a smaller one.
    """
    check_regular(path, cure)
    try:
        if path.stat().st_size > largest:
            raise DataError(f"{path} has more than {largest:,} bytes: {cure}")
        with path.open("rb") as file:
            return file.read(largest)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): {cure}") from error
