"""Reading of arrays of a MATLAB file, whose sizes are checked before anything is unpacked."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from scipy.io import loadmat, whosmat

from eblvm_lit.errors import DataError
from eblvm_lit.utils.foreign_files import LARGEST, check_regular

__all__ = ["Expected", "read_matlab"]

HEADER, COMPRESSED = 128, 15  # bytes before the first variable, and the type of one that is compressed
CHUNK = 1 << 20
MAX_VARIABLES = 1000
# MATLAB's types of numbers, as numpy calls them.
DTYPES = {f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
DTYPES |= {"single": "float32", "double": "float64"}


class Expected(NamedTuple):
    """What an array is to be: its shape, in which -1 stands for any size, and its type, or None for any number."""

    shape: tuple[int, ...]
    dtype: str | None = "uint8"


def read_matlab(path: Path, expected: Mapping[str, Expected], what: str, cure: str) -> dict[str, np.ndarray]:
    """Read arrays of real numbers.

    Args:
        path: The file.
        expected: The arrays by name.
        what: What the file should be, for the error.
        cure: What to do with another one.

    Returns:
        The arrays by name.

    Raises:
        DataError: The file is damaged, unpacks to too much, or lacks one of the arrays, which may be sparse or have
            another shape or type.

    Example:
        >>> read_matlab(Path("nowhere.mat"), {"X": Expected((-1, 2))}, "MATLAB file", "put it there.")
        Traceback (most recent call last):
        eblvm_lit.errors.DataError: nowhere.mat is missing: put it there.
    """
    check_regular(path, cure)
    try:
        with path.open("rb") as file:
            _check_sizes(file)
            file.seek(0)
            listed = whosmat(file)
            for name, wanted in expected.items():
                found = [(shape, kind) for other, shape, kind in listed if other == name]
                if len(found) != 1:
                    raise DataError(f"{path} holds no array {name!r}: {cure}")
                if not _fits(wanted, *found[0]):
                    raise DataError(f"{path} holds {name!r} as {_text(*found[0])} instead of {_text(*wanted)}: {cure}")
            file.seek(0)
            content = loadmat(file, variable_names=list(expected))
            return {name: _dense(content[name], wanted) for name, wanted in expected.items()}
    except DataError:
        raise
    except Exception as error:  # scipy's exceptions for damaged files share no base class
        raise DataError(f"{path} is damaged or no {what}: {cure}") from error


def _fits(wanted: Expected, shape: Sequence[int], kind: str) -> bool:
    """Whether an array has the shape, and holds numbers that are stored one by one."""
    sizes = len(shape) == len(wanted.shape) and all(n in (-1, m) for n, m in zip(wanted.shape, shape, strict=True))
    return sizes and (kind in DTYPES if wanted.dtype is None else DTYPES.get(kind) == wanted.dtype)


def _text(shape: Sequence[int], kind: str | None) -> str:
    return f"{DTYPES.get(str(kind), kind or 'numbers')} {tuple(shape)}"


def _dense(array: Any, wanted: Expected) -> np.ndarray:
    """What was read, which a damaged file describes otherwise than it announces it."""
    if type(array) is not np.ndarray or array.dtype.kind not in "iuf" or wanted.dtype not in (None, str(array.dtype)):
        raise ValueError("it holds other numbers than it announces")
    return array


def _check_sizes(file: BinaryIO) -> None:
    """Refuse a file that is cut off, or whose compressed variables unpack to more than the largest data set."""
    size, total, count = os.fstat(file.fileno()).st_size, 0, 0
    if size > LARGEST:
        raise ValueError(f"it has more than {LARGEST:,} bytes")
    order = {b"IM": "<", b"MI": ">"}.get(file.read(HEADER)[-2:])
    while order and len(tag := file.read(8)) == 8:
        kind, n_bytes = struct.unpack(f"{order}II", tag)
        end = file.tell() + n_bytes
        if end > size:
            raise ValueError("it is cut off")
        total += _unpacked(file, n_bytes, LARGEST - total) if kind == COMPRESSED else n_bytes
        file.seek(end)
        count += 1
        if total > LARGEST or count > MAX_VARIABLES:
            raise ValueError(f"it unpacks to more than {LARGEST:,} bytes, or has more than {MAX_VARIABLES} variables")


def _unpacked(file: BinaryIO, n_bytes: int, most: int) -> int:
    """The number of bytes to which the next ones unpack, or any number above ``most``."""
    unpacker, total = zlib.decompressobj(), 0
    while n_bytes and total <= most and (packed := file.read(min(n_bytes, CHUNK))):
        n_bytes -= len(packed)
        while packed and total <= most:
            total += len(unpacker.decompress(packed, CHUNK))
            packed = unpacker.unconsumed_tail
    return total
