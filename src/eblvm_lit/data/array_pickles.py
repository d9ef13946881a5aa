"""Reading of pickled dictionaries of arrays without unpickling them: no function that a pickle names is called."""

from __future__ import annotations

import math
import pickletools
from typing import Any

import numpy as np

__all__ = ["PickledArray", "read_pickle"]

MAX_OPERATIONS = 2_000_000  # CIFAR100's largest file has 400,000
MAX_ENCODED = 1 << 28  # characters: one text can be encoded many times

ATOMS = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
}
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
EMPTY = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
MEMOIZED, RECALLED = ("PUT", "BINPUT", "LONG_BINPUT"), ("GET", "BINGET", "LONG_BINGET")
IGNORED = ("PROTO", "FRAME")
# What a pickled array names: Python 3 writes bytes in Python 2's format by the last one.
NAMES = {
    *((f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")),
    *(("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")),
}


class PickledArray:
    """Stands for an array or a type of an array: what it was made of, and its state.

    Args:
        name: The function that would have been called: ``_reconstruct`` or ``dtype``.
        args: Its arguments.

    Attributes:
        state: What the array would have been given afterwards.

    Example:
        >>> import pickle
        >>> read_pickle(pickle.dumps(np.arange(3, dtype=np.uint8), protocol=2)).uint8(3)
        array([0, 1, 2], dtype=uint8)
    """

    def __init__(self, name: str, args: tuple[Any, ...]) -> None:
        self.name, self.args = name, args
        self.state: Any = None

    def uint8(self, *shape: int) -> np.ndarray:
        """The array, if it is one of bytes in C order; the first dimension may be -1.

        Raises:
            ValueError: It has another type, order or shape, or too few or too many bytes.
        """
        if self.name != "_reconstruct" or not isinstance(self.state, tuple) or len(self.state) != 5:
            raise ValueError("it is no array")
        _, found, dtype, fortran, raw = self.state
        if not isinstance(dtype, PickledArray) or dtype.name != "dtype" or dtype.args[:1] not in (("u1",), ("|u1",)):
            raise ValueError("it is no array of bytes")
        raw = raw.encode("latin1") if isinstance(raw, str) else raw  # Python 2 has no type of bytes
        if not _is_shape(found) or fortran is not False or not isinstance(raw, bytes) or len(raw) != math.prod(found):
            raise ValueError("its bytes are not those of its shape")
        if len(found) != len(shape) or any(n not in (-1, m) for n, m in zip(shape, found, strict=True)):
            raise ValueError(f"its shape is {found} instead of {shape}")
        return np.frombuffer(raw, np.uint8).reshape(found).copy()  # torch needs writable memory


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, tuple) and all(type(n) is int and n >= 0 for n in shape)


def read_pickle(content: bytes) -> Any:
    """What a pickle describes: numbers, texts, bytes, lists, tuples, dictionaries, and arrays as descriptions.

    Args:
        content: The pickle, of any protocol that describes arrays by bytes (0 to 4).

    Raises:
        ValueError: It holds something else, or is damaged.

    Example:
        >>> import os, pickle
        >>> read_pickle(pickle.dumps({"labels": [3, 1]}))
        {'labels': [3, 1]}
        >>> read_pickle(pickle.dumps(os.getcwd))
        Traceback (most recent call last):
        ValueError: posix.getcwd is no part of an array
    """
    reader = _Reader()
    for count, (operation, arg, _) in enumerate(pickletools.genops(content)):
        if count > MAX_OPERATIONS:
            raise ValueError(f"it has more than {MAX_OPERATIONS:,} operations")
        if operation.name == "STOP":
            break
        reader.run(operation.name, arg)
    return reader.stack.pop()


class _Reader:
    """The stack and the memo of a pickle that is being read."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.encoded = 0

    def run(self, name: str, arg: Any) -> None:
        """One operation."""
        if name in ATOMS:
            self.stack.append(arg)
        elif name in CONSTANTS:
            self.stack.append(CONSTANTS[name])
        elif name in EMPTY:
            self.stack.append(EMPTY[name]())
        elif name in TUPLES:
            self.stack.append(tuple(self.pop(TUPLES[name])))
        elif name in MEMOIZED:
            self.memo[arg] = self.stack[-1]
        elif name in RECALLED:
            self.stack.append(self.memo[arg])
        elif name not in IGNORED:
            getattr(self, f"on_{name.lower()}", self.refuse)(*(() if arg is None else (arg,)))

    def refuse(self, *_: Any) -> None:
        raise ValueError("it holds more than arrays, lists and dictionaries")

    def pop(self, n: int) -> list[Any]:
        """The last n values."""
        if len(self.stack) < n:
            raise ValueError("it ends before it is complete")
        values = self.stack[len(self.stack) - n :]
        del self.stack[len(self.stack) - n :]
        return values

    def marked(self) -> list[Any]:
        """The values since the last mark."""
        return self.pop(len(self.stack) - self.marks.pop())

    def on_mark(self) -> None:
        self.marks.append(len(self.stack))

    def on_memoize(self) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def on_list(self) -> None:
        self.stack.append(self.marked())

    def on_tuple(self) -> None:
        self.stack.append(tuple(self.marked()))

    def on_dict(self) -> None:
        self.stack.append(_pairs(self.marked()))

    def on_append(self) -> None:
        self.extend(self.pop(1))

    def on_appends(self) -> None:
        self.extend(self.marked())

    def extend(self, values: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise ValueError("it adds to what is no list")
        self.stack[-1].extend(values)

    def on_setitem(self) -> None:
        self.update(self.pop(2))

    def on_setitems(self) -> None:
        self.update(self.marked())

    def update(self, values: list[Any]) -> None:
        if type(self.stack[-1]) is not dict:
            raise ValueError("it adds to what is no dictionary")
        self.stack[-1].update(_pairs(values))

    def on_global(self, name: str) -> None:
        module, _, name = name.partition(" ")
        self.push_name(module, name)

    def on_stack_global(self) -> None:
        self.push_name(*self.pop(2))

    def push_name(self, module: Any, name: Any) -> None:
        if (module, name) not in NAMES:
            raise ValueError(f"{module}.{name} is no part of an array")
        self.stack.append(_Name(name))

    def on_reduce(self) -> None:
        function, args = self.pop(2)
        if not isinstance(function, _Name) or not isinstance(args, tuple):
            raise ValueError("it calls what is no part of an array")
        if function == "encode":
            text, codec = args
            self.encoded += len(text)
            if codec != "latin1" or self.encoded > MAX_ENCODED:
                raise ValueError("it encodes what are no bytes")
            self.stack.append(text.encode("latin1"))
        else:
            self.stack.append(PickledArray(str(function), args))

    def on_build(self) -> None:
        state = self.pop(1)[0]
        if type(self.stack[-1]) is not PickledArray:
            raise ValueError("it gives a state to what is no array")
        self.stack[-1].state = state


class _Name(str):
    """One of the names of a pickled array, which no text of a pickle is."""


def _pairs(values: list[Any]) -> dict[Any, Any]:
    """A dictionary of alternating keys and values."""
    return dict(zip(values[::2], values[1::2], strict=True))
