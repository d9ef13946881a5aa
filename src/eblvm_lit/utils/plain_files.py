"""Files from elsewhere, read as plain data within limits: no device, no bomb, no object, no reference."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from eblvm_lit.errors import DataError

__all__ = ["check_plain", "damaged", "open_regular", "parse_yaml", "read_json", "read_text"]

# A run's own configuration has some 500 entries, 10 levels and 20 kB.
MOST_BYTES, MOST_ENTRIES, DEEPEST = 10**6, 10_000, 64

_Base: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # without libyaml, the slower one


class _Loader(_Base):
    """YAML as OmegaConf writes it: 1e-5 is a number and 2026-01-01 is a text, and a key occurs once.

    It is not OmegaConf's own loader, whose nodes parse every interpolation, which a text can make arbitrarily slow.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own name
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in _Base.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping; PyYAML takes the last of equal keys, and this refuses them."""
        _check_once([key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)])
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def open_regular(path: Path, most: int = MOST_BYTES) -> BinaryIO:
    """Open a regular file of limited size; a FIFO would block, and a device may do anything.

    Args:
        path: The file, or a link to it.
        most: The largest size in bytes.

    Raises:
        FileNotFoundError: If there is no such file.
        DataError: If it is something else, too large, or cannot be read.

    Example:
        >>> open_regular(Path("/dev/zero"))
        Traceback (most recent call last):
        eblvm_lit.errors.DataError: /dev/zero is damaged or cannot be read (it is not a regular file).
    """
    try:
        _check_regular(os.stat(path), most)  # before it is opened, which some devices notice
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        try:
            _check_regular(os.fstat(descriptor), most)  # another one may have taken its place
        except ValueError:
            os.close(descriptor)
            raise
        return os.fdopen(descriptor, "rb")
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise damaged(path, error) from None


def _check_regular(status: os.stat_result, most: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is not a regular file")
    if status.st_size > most:
        raise ValueError(f"it has {status.st_size:,} bytes, and {most:,} are read at most")


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """The text of a file in UTF-8; the size that some special files state is none, so the reading is limited, too.

    Raises:
        FileNotFoundError: If there is no such file.
        DataError: If it is no regular file, too large, or no text.
    """
    with open_regular(path, most) as file:
        try:
            content = file.read(most + 1)
            if len(content) > most:
                raise ValueError(f"it has more than {most:,} bytes")
            return content.decode()
        except (OSError, ValueError) as error:
            raise damaged(path, error) from None


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        FileNotFoundError: If there is no such file.
        DataError: If it is damaged, or beyond the limits of :func:`check_plain`.
    """
    text = read_text(path)
    try:
        content = json.loads(text, object_pairs_hook=_mapping)
        check_plain(content)
    except (ValueError, RecursionError) as error:
        raise damaged(path, error) from None
    return content


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A mapping of JSON; Python takes the last of equal keys, and this refuses them."""
    _check_once([key for key, _ in pairs])
    return dict(pairs)


def _check_once(keys: list[str]) -> None:
    if len(set(keys)) < len(keys):
        raise ValueError(f"the key {Counter(keys).most_common(1)[0][0][:40]!a} occurs twice")


def parse_yaml(text: str) -> Any:
    r"""The content of a YAML text without tags and aliases; interpolations are texts.

    Raises:
        ValueError: If it is no such text, or beyond the limits of :func:`check_plain`.

    Example:
        >>> parse_yaml("lr: 1e-3\nname: ${oc.env:HOME}\nday: 2026-01-01")
        {'lr': 0.001, 'name': '${oc.env:HOME}', 'day': '2026-01-01'}
        >>> parse_yaml("a: &a [1]\nb: *a")
        Traceback (most recent call last):
        ValueError: it has an alias, and no file of a run has one
    """
    try:
        _check_events(text)
        content = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    except (LookupError, AttributeError, TypeError, RecursionError, OverflowError) as error:  # of PyYAML's constructors
        raise ValueError(f"{type(error).__name__}: {error}") from None
    check_plain(content)
    return content


def _check_events(text: str) -> None:
    """Refuse what makes a short text large, deep or an object, before anything is built."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=_Base)):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("it has an alias, and no file of a run has one")
        if getattr(event, "tag", None) is not None:
            raise ValueError(f"it has the tag {event.tag!r}, and no file of a run has one")
        if depth > DEEPEST:
            raise ValueError(f"it is nested deeper than {DEEPEST} levels")
        if count > 4 * MOST_ENTRIES:  # an entry has two to four events
            raise ValueError(f"it has more than {MOST_ENTRIES:,} entries")


def check_plain(content: Any) -> None:
    """Refuse what is no plain data, or too much of it; what is shared counts as often as it occurs.

    Args:
        content: Nested mappings and lists.

    Raises:
        ValueError: If it is nested too deep, has too many entries, an integer that no float holds, or an object.

    Example:
        >>> check_plain({"a": [1, 2.0, "text", None, True]})
        >>> check_plain([10**400])
        Traceback (most recent call last):
        ValueError: it has an integer that no float holds
    """
    stack, count = [(content, 0)], 0
    while stack:
        node, depth = stack.pop()
        children = [*node, *node.values()] if isinstance(node, Mapping) else node
        if isinstance(children, list | tuple):
            count += len(children)
            stack += [(child, depth + 1) for child in children]
        elif isinstance(node, int) and abs(node) > sys.float_info.max:
            raise ValueError("it has an integer that no float holds")
        elif not isinstance(node, str | int | float | None):
            raise ValueError(f"it holds an object of {type(node).__name__}")
        if depth > DEEPEST:
            raise ValueError(f"it is nested deeper than {DEEPEST} levels")
        if count > MOST_ENTRIES:
            raise ValueError(f"it has more than {MOST_ENTRIES:,} entries")


def damaged(path: Path, error: Exception) -> DataError:
    """The sentence for a file that cannot be read."""
    lines = str(getattr(error, "strerror", None) or error).splitlines()
    return DataError(f"{path} is damaged or cannot be read ({next(iter(lines), type(error).__name__)}).")
