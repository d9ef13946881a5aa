"""Reading of arrays of numbers from MATLAB files of version 5, every size in which is checked before it is used."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from eblvm_lit.errors import DataError
from eblvm_lit.utils.foreign_files import LARGEST, check_regular

__all__ = ["Expected", "read_matlab"]

# scipy.io.loadmat trusts what a file says of its variables: one with a wrong type ends the process with signal 11.

HEADER, HEAD = 128, 1024  # bytes of the file's header, and of a variable that are enough for its name and sizes
MAX_VARIABLES = 1000
COMPRESSED, MATRIX, FLAGS, SIZES, NAME = 15, 14, 6, 5, 1  # types of elements
STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
OTHER_CLASSES = {1: "cells", 2: "a structure", 3: "an object", 4: "text", 5: "a sparse matrix"}
COMPLEX, LOGICAL = 8, 2


class Expected(NamedTuple):
    """What an array is to be: its shape, in which -1 stands for any size, and its type, or None for any number."""

    shape: tuple[int, ...]
    dtype: str | None = "uint8"


class _Variable(NamedTuple):
    """A variable: its name, shape, type, and its numbers in columns, as they are stored."""

    name: str
    shape: tuple[int, ...]
    kind: str
    stored: np.dtype
    data: memoryview

    def array(self) -> np.ndarray:
        """The numbers, in memory that cannot be written to where they are stored as they are."""
        return np.frombuffer(self.data, self.stored).astype(self.kind, copy=False).reshape(self.shape, order="F")


def read_matlab(path: Path, expected: Mapping[str, Expected], what: str, cure: str) -> dict[str, np.ndarray]:
    """Read arrays of real numbers.

    Args:
        path: The file.
        expected: The arrays by name.
        what: What the file should be, for the error.
        cure: What to do with another one.

    Returns:
        The arrays by name; their memory may be read-only.

    Raises:
        DataError: The file is damaged, unpacks to too much, or lacks one of the arrays, which may be sparse or have
            another shape or type.

    Example:
        >>> read_matlab(Path("nowhere.mat"), {"X": Expected((-1, 2))}, "MATLAB file", "put it there.")
        Traceback (most recent call last):
        eblvm_lit.errors.DataError: nowhere.mat is missing: put it there.
    """
    check_regular(path, cure)
    found: dict[str, np.ndarray] = {}
    try:
        with path.open("rb") as file:
            for variable in _variables(file, expected):
                wanted = expected[variable.name]
                if not _fits(variable, wanted) or variable.name in found:
                    it, instead = f"{variable.kind} {variable.shape}", f"{wanted.dtype or 'numbers'} {wanted.shape}"
                    raise DataError(f"{path} holds {variable.name!r} as {it} instead of {instead}: {cure}")
                found[variable.name] = variable.array()
    except DataError:
        raise
    except Exception as error:  # whatever sizes that are none lead to
        raise DataError(f"{path} is damaged or no {what}: {cure}") from error
    if missing := sorted(expected.keys() - found.keys()):
        raise DataError(f"{path} holds no array {missing[0]!r}: {cure}")
    return found


def _fits(variable: _Variable, wanted: Expected) -> bool:
    shape = variable.shape
    sizes = len(shape) == len(wanted.shape) and all(n in (-1, m) for n, m in zip(wanted.shape, shape, strict=True))
    numbers = {str(np.dtype(kind)) for kind in CLASSES.values()}
    return sizes and (variable.kind in numbers if wanted.dtype is None else variable.kind == wanted.dtype)


def _variables(file: BinaryIO, names: Mapping[str, object]) -> Iterator[_Variable]:
    """The variables of some names; what the others hold is not unpacked."""
    size = os.fstat(file.fileno()).st_size
    order = {b"IM": "<", b"MI": ">"}[file.read(HEADER)[-2:]]
    if size > LARGEST:
        raise ValueError(f"it has more than {LARGEST:,} bytes")
    for _ in range(MAX_VARIABLES):
        if file.tell() == size:
            return
        kind, n_bytes = struct.unpack(f"{order}II", file.read(8))
        if n_bytes > size - file.tell():
            raise ValueError("it is cut off")
        content = file.read(n_bytes)
        unpack = _unpacked if kind == COMPRESSED else _plain
        head = _parse(unpack(content, kind, order, HEAD), order)
        if head.name in names:
            whole = _parse(unpack(content, kind, order, LARGEST), order)
            if whole.kind in OTHER_CLASSES.values() or len(whole.data) == np.prod(whole.shape) * whole.stored.itemsize:
                yield whole
            else:
                raise ValueError(f"{whole.name} has {len(whole.data)} bytes for shape {whole.shape}")
    raise ValueError(f"it has more than {MAX_VARIABLES} variables")


def _plain(content: bytes, kind: int, order: str, most: int) -> memoryview:  # noqa: ARG001
    if kind != MATRIX:
        raise ValueError(f"it holds an element of type {kind}")
    return memoryview(content)[:most]


def _unpacked(content: bytes, kind: int, order: str, most: int) -> memoryview:
    """The beginning of a compressed matrix."""
    unpacked = zlib.decompressobj().decompress(content, most + 8)
    kind, n_bytes = struct.unpack_from(f"{order}II", unpacked)
    if kind != MATRIX or n_bytes > LARGEST:
        raise ValueError(f"it holds an element of type {kind} of {n_bytes} bytes")
    return memoryview(unpacked)[8 : 8 + min(n_bytes, most)]


def _parse(content: memoryview, order: str) -> _Variable:
    """A variable; of one that is cut off, the name, shape and type."""
    flags, at = _element(content, 0, FLAGS, order)
    sizes, at = _element(content, at, SIZES, order)
    name, at = _element(content, at, NAME, order)
    word = struct.unpack_from(f"{order}I", flags)[0]
    shape = struct.unpack(f"{order}{len(sizes) // 4}i", sizes)
    if len(shape) > 32 or any(n < 0 for n in shape):
        raise ValueError(f"it has an array of shape {shape}")
    text, kind = bytes(name).decode("latin1"), OTHER_CLASSES.get(word & 255)
    if word >> 8 & (COMPLEX | LOGICAL):
        kind = "complex numbers" if word >> 8 & COMPLEX else "truth values"
    if kind is not None:
        return _Variable(text, shape, kind, np.dtype("u1"), memoryview(b""))
    (stored,) = struct.unpack_from(f"{order}H", content, at + (2 if order == ">" else 0))
    data, _ = _element(content, at, stored, order, whole=False)
    return _Variable(text, shape, str(np.dtype(CLASSES[word & 255])), np.dtype(order + STORED[stored]), data)


def _element(content: memoryview, at: int, kind: int, order: str, *, whole: bool = True) -> tuple[memoryview, int]:
    """The bytes of an element, and where the next one begins."""
    word, n_bytes = struct.unpack_from(f"{order}II", content, at)
    small = word >> 16  # up to four bytes are stored in the tag
    found, begin, n_bytes = (word & 0xFFFF, at + 4, small) if small else (word, at + 8, n_bytes)
    end = begin + n_bytes
    if found != kind or (small and n_bytes > 4) or (whole and end > len(content)):
        raise ValueError(f"it holds an element of type {found} of {n_bytes} bytes")
    return content[begin:end], at + 8 if small else end + -n_bytes % 8
