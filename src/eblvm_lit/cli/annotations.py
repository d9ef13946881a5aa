"""The values that an annotation accepts: the one check of a configuration's types and kinds."""

from __future__ import annotations

import inspect
import math
import os
import re
from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from eblvm_lit.errors import ConfigError

__all__ = ["CONTAINERS", "check_value", "is_part", "options_of"]

# The types of YAML scalars and containers that match an annotation.
SCALARS = {int: int, float: (int, float), bool: bool, str: str, NoneType: NoneType}
CONTAINERS = {Sequence: list, list: list, tuple: list, Mapping: dict, dict: dict}
INT64 = 2**63


def options_of(hint: Any) -> tuple[Any, ...]:
    """The members of a union, or the annotation itself.

    Example:
        >>> options_of(int | None)
        (<class 'int'>, <class 'NoneType'>)
    """
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def is_part(hint: Any) -> bool:
    """Whether an annotation is a class whose objects a configuration describes by a mapping with ``_target_``.

    Example:
        >>> from pathlib import Path
        >>> from eblvm_lit.energies.base import Energy
        >>> is_part(Energy), is_part(Path), is_part(float), is_part(Any)
        (True, False, False, False)
    """
    if not isinstance(hint, type) or hint in (Any, object) or getattr(hint, "_is_protocol", False):
        return False
    return hint not in SCALARS and hint not in CONTAINERS and not issubclass(hint, os.PathLike)


def _usable(value: Any) -> bool:
    """Whether a number is finite and, if whole, within 64 bits, as torch and numpy need it."""
    if type(value) is int:
        return -INT64 <= value < INT64
    return not isinstance(value, float) or math.isfinite(value)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a plain value matches an annotation; True if that cannot be decided."""
    origin = get_origin(hint) or hint
    if origin in (Union, UnionType):
        return any(_fits(value, option) for option in get_args(hint))
    if origin is Literal:
        return any(value == option and type(value) is type(option) for option in get_args(hint))
    if origin in SCALARS:
        is_kind = isinstance(value, SCALARS[origin]) and (origin is bool or not isinstance(value, bool))
        return is_kind and _usable(value)
    if origin in CONTAINERS:
        return isinstance(value, CONTAINERS[origin]) and _elements_fit(value, get_args(hint))
    if isinstance(origin, type) and issubclass(origin, os.PathLike):
        return isinstance(value, str)
    if is_part(origin):
        return isinstance(value, dict)  # the description of an object, which checks its parts itself
    return True


def _elements_fit(value: list | dict, hints: tuple[Any, ...]) -> bool:
    """Whether the elements of a container match its annotation."""
    if not hints:
        return True
    if isinstance(value, dict):
        return all(_fits(item, hints[-1]) for item in value.values())
    if len(hints) > 1 and hints[-1] is not Ellipsis:  # a tuple of several types
        return len(value) == len(hints) and all(map(_fits, value, hints))
    return all(_fits(item, hints[0]) for item in value)


def _words(value: Any, hint: Any) -> str:
    """What an annotation wants, in the words for this value."""
    kinds = {kind for option in options_of(hint) for kind in (option, *get_args(option)) if isinstance(kind, type)}
    items = value if isinstance(value, list) else value.values() if isinstance(value, dict) else (value,)
    if any(not _usable(item) for item in items):
        if any(isinstance(item, float) for item in items) and float in kinds:
            return "a finite number" if items == (value,) else "finite numbers"
        if int in kinds or float in kinds:
            return "a number within 64 bits" if items == (value,) else "numbers within 64 bits"
    return re.sub(r"\b\w+\.", "", inspect.formatannotation(hint))


def check_value(value: Any, hint: Any, path: str) -> None:
    """Refuse a value of another type than its annotation, a number that is not finite, and one beyond 64 bits.

    Args:
        value: Plain: a scalar, a list or a mapping.
        hint: The annotation.
        path: The position in the configuration, for messages.

    Raises:
        ConfigError: Says what fits.

    Example:
        >>> check_value(3, int | None, "threads")
        >>> check_value(float("nan"), float, "optimizer.lr")
        Traceback (most recent call last):
        ...
        eblvm_lit.errors.ConfigError: optimizer.lr must be a finite number, not nan.
    """
    if not _fits(value, hint):
        for option in options_of(hint) if isinstance(value, dict) else ():
            if get_origin(option) in CONTAINERS and len(get_args(option)) == 2:  # say which of its values is wrong
                for key, item in value.items():
                    check_value(item, get_args(option)[1], f"{path}.{key}")
        shown = value.get("_target_", value) if isinstance(value, dict) else value
        raise ConfigError(f"{path} must be {_words(value, hint)}, not {shown!r}.")
