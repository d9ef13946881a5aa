"""Locks that end with the process that holds them: of files, and of the folder of a run."""

from __future__ import annotations

import errno
import logging
import os
import platform
import weakref
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from eblvm_lit.errors import ConfigError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

__all__ = ["LOCK", "FolderLock", "lock"]

LOCK = ".lock"  # the file of a folder that a run is in
NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)  # Windows has no such flag
TAKEN = (errno.EWOULDBLOCK, errno.EACCES)

log = logging.getLogger(__name__)


def lock(descriptor: int) -> bool:
    """Lock an open file, for this process and until it is closed.

    Args:
        descriptor: Of the file.

    Returns:
        Whether this process holds the lock now; False if another one does, or the file system has no locks.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile() as one, open(one.name) as other:
        ...     lock(one.fileno()), lock(other.fileno())
        (True, False)
    """
    return _reason_against(descriptor) is None


def _reason_against(descriptor: int) -> OSError | None:
    """Lock an open file; why that failed, if it did."""
    try:
        if fcntl is None:
            raise OSError(errno.ENOTSUP, "this system has none")
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error
    return None


class FolderLock:
    """Keeps a second run out of a folder, by a lock on its file ``.lock``.

    The system ends the lock with the process, however that ends; a file that a killed process leaves locks nothing.

    Args:
        folder: The existing folder.

    Raises:
        ConfigError: When it is entered, if another run is in the folder.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with FolderLock(folder), FolderLock(folder):
        ...     pass
        Traceback (most recent call last):
        eblvm_lit.errors.ConfigError: Another run (process ...) is in ...: wait until it ends, or choose another ...
        >>> list(folder.iterdir())
        []
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._release: weakref.finalize | None = None

    def __enter__(self) -> Self:
        """Take the lock; a file system without locks is warned of."""
        path = self.folder / LOCK
        try:
            descriptor = _open(path)
            while (failure := _reason_against(descriptor)) is None and not _is_file(descriptor, path):
                os.close(descriptor)  # the run before has removed it meanwhile
                descriptor = _open(path)
        except OSError as error:
            _warn(self.folder, error)
            return self
        if failure is None:
            _sign(descriptor)
            self._release = weakref.finalize(self, _remove, path, descriptor, os.getpid())  # at exit at the latest
            return self
        with os.fdopen(descriptor) as file:
            if failure.errno in TAKEN:
                raise ConfigError(_refusal(self.folder, file.read(200)))
        _warn(self.folder, failure)
        path.unlink(missing_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the lock back."""
        if self._release is not None:
            self._release()


def _open(path: Path) -> int:
    """Open the file of a lock; one of another user can be locked, too."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | NOFOLLOW, 0o666)
    except PermissionError:
        return os.open(path, os.O_RDONLY | NOFOLLOW)


def _sign(descriptor: int) -> None:
    """Write into the file who holds the lock."""
    with suppress(OSError):  # a full disk, or a file of another user
        os.truncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {platform.node()}".encode())


def _warn(folder: Path, error: OSError) -> None:
    log.warning("%s cannot be locked (%s): nothing keeps a second run out of it.", folder, error.strerror)


def _is_file(descriptor: int, path: Path) -> bool:
    """Whether an open file is the one at a path."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    return False


def _refusal(folder: Path, holder: str) -> str:
    who = f" ({holder})" if holder else ""
    return (
        f"Another run{who} is in {folder}: wait until it ends, or choose another folder by hydra.run.dir=... "
        "(hydra.sweep.dir=... with -m)."
    )


def _remove(path: Path, descriptor: int, pid: int) -> None:
    """Remove the file, and with it the lock; a forked process leaves that to the one that has taken it."""
    with suppress(OSError):
        if os.getpid() == pid:
            path.unlink()
        os.close(descriptor)
