"""Files that runs share: written as a whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO

from eblvm_lit.errors import DataError

__all__ = ["write_whole"]


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file under another name, and give it its own when it is whole.

    Args:
        path: The file; its folder is made.
        write: Writes the content.

    Raises:
        DataError: If it cannot be written.

    Example:
        >>> write_whole(Path("/dev/null/cache/a.npz"), lambda file: file.write(b"1"))
        Traceback (most recent call last):
        eblvm_lit.errors.DataError: /dev/null/cache/a.npz could not be written (...): choose ...
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                write(file)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(
            f"{path} could not be written ({error}): choose a folder with room that can be written to."
        ) from error
