"""A check that a path is a regular file: opening a pipe waits for ever, and a device has no end."""

from __future__ import annotations

import os
from pathlib import Path

from eblvm_lit.errors import DataError

__all__ = ["check_regular"]


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
