"""An array of bytes on disk that is filled row by row, and knows which of its rows are right."""

from __future__ import annotations

import logging
import os
import shutil
import zlib
from collections.abc import Sequence
from contextlib import nullcontext
from io import BytesIO
from pathlib import Path

import numpy as np

from eblvm_lit.errors import ConfigError
from eblvm_lit.utils.io import replacing

__all__ = ["CheckedRows"]

log = logging.getLogger(__name__)


class CheckedRows:
    """Rows of bytes in ``samples.npy`` and their checksums in ``checksums.npy``.

    A row counts from the moment its checksum is written, which is after the row itself has reached the disk, and only
    for as long as the two agree: whenever a writer dies, and whatever becomes of the files, no row is taken for what it
    is not. Several processes may write rows at the same time; both files grow in place. Nothing of the files is held in
    memory.

    Args:
        folder: Where the files are, or will be.
        row_shape: Shape of one row.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     rows = CheckedRows(folder, (2,))
        ...     rows.grow(3)
        ...     rows.write([1], np.array([[7, 8]], dtype=np.uint8))
        ...     rows.valid(3).tolist(), rows.read(2)[1].tolist()
        ([False, True, False], [7, 8])
    """

    def __init__(self, folder: str | Path, row_shape: Sequence[int]) -> None:
        self.folder, self.row_shape = Path(folder), tuple(row_shape)
        self.files = {
            self.folder / "samples.npy": (np.dtype(np.uint8), self.row_shape),
            self.folder / "checksums.npy": (np.dtype(np.uint32), ()),
        }

    def grow(self, n: int) -> None:
        """Make room for n rows; those that are there stay, and files that are damaged begin anew.

        Raises:
            ConfigError: If the disk has no room for them, or nothing can be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if any(path.exists() and _map(path, *form) is None for path, form in self.files.items()):
                log.warning("The samples in %s are damaged: they are drawn anew.", self.folder)
                for path in self.files:
                    path.unlink(missing_ok=True)
            needed = (n - self._n_written(n)) * (int(np.prod(self.row_shape)) + 4)
            free = shutil.disk_usage(self.folder).free
            if needed > free:
                raise ConfigError(
                    f"{n:,} samples in {self.folder} need {needed / 1e6:,.0f} MB more and {free / 1e6:,.0f} MB are "
                    "free: set cache_dir to a folder with room."
                )
            for path, form in self.files.items():
                _reserve(path, n, *form)
        except OSError as error:
            raise self._refusal(error) from error

    def valid(self, n: int) -> np.ndarray:
        """Which of the first n rows have been written, and are as they were written, bool, shape (n,)."""
        samples, sums = (_map(path, *form) for path, form in self.files.items())
        right = np.zeros(n, dtype=bool)
        if samples is not None and sums is not None:
            written = np.flatnonzero(sums[:n])
            right[written] = [i < len(samples) and _checksum(samples[i]) == sums[i] for i in written]
            if not right[written].all():
                log.warning("%d samples in %s are damaged: they are drawn anew.", (~right[written]).sum(), self.folder)
        return right

    def write(self, indices: Sequence[int], rows: np.ndarray) -> None:
        """Write rows, uint8, shape (len(indices), *row_shape), where :meth:`grow` has made room.

        Raises:
            ConfigError: If the disk is full.
        """
        rows = np.ascontiguousarray(rows)
        sums = np.array([_checksum(row) for row in rows], dtype=np.uint32)
        try:
            for (path, (dtype, shape)), values in zip(self.files.items(), (rows, sums), strict=True):
                with path.open("r+b") as file:
                    for i, value in zip(indices, values, strict=True):
                        file.seek(len(_header(1, dtype, shape)) + i * value.nbytes)
                        file.write(value.tobytes())
                    file.flush()
                    os.fsync(file.fileno())
        except OSError as error:
            raise self._refusal(error) from error

    def read(self, n: int) -> np.ndarray:
        """The first n rows, mapped from the disk; what is done to them does not reach it."""
        return np.load(self.folder / "samples.npy", mmap_mode="c")[:n]

    def _n_written(self, n: int) -> int:
        """How many of the first n rows have a checksum, right or wrong."""
        sums = _map(self.folder / "checksums.npy", np.dtype(np.uint32), ())
        return 0 if sums is None else int(np.count_nonzero(sums[:n]))

    def _refusal(self, error: OSError) -> ConfigError:
        return ConfigError(
            f"Samples cannot be written to {self.folder} ({error.strerror or error}): set cache_dir to another folder."
        )


def _checksum(row: np.ndarray) -> int:
    """That of a row; never 0, which stands for no row."""
    return zlib.crc32(np.ascontiguousarray(row)) or 1


def _header(n: int, dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """The beginning of a .npy file; numpy gives it the same length for every n."""
    file = BytesIO()
    form = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (n, *shape)}
    np.lib.format.write_array_header_1_0(file, form)
    return file.getvalue()


def _map(path: Path, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray | None:
    """A file's array; None where there is none of this type."""
    try:
        array = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError):
        return None
    return array if (array.dtype, array.shape[1:]) == (dtype, shape) else None


def _reserve(path: Path, n: int, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    """Bring a file to at least n rows: a new one as a whole, a shorter one in place, its length before its header."""
    size = dtype.itemsize * int(np.prod(shape))
    header, there = _header(n, dtype, shape), _map(path, dtype, shape)
    if there is not None and len(there) >= n:
        return
    new = there is None
    with replacing(path) if new else nullcontext(path) as target, target.open("wb" if new else "r+b") as file:
        file.truncate(len(header) + n * size)
        file.write(header)
