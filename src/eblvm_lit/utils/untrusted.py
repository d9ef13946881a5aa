"""Readers of files that a stranger may have written: what is damaged, or too large to be honest, is refused."""

from __future__ import annotations

import re
import zipfile
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any

import yaml

from eblvm_lit.errors import DataError

__all__ = ["read_tensors", "read_yaml", "refuse_endless"]

# Limits that files of this package are far from. A configuration has 10 kB, 300 values and 8 levels. The pickle of a
# checkpoint has 150 bytes for each tensor, and may have 32 times as many as a configuration.
MOST = 2**17
LEVELS = 40
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where PyYAML is built with it


def read_yaml(path: Path) -> Any:
    """Read a configuration as plain containers; interpolations stay text.

    Aliases are refused: some hundred bytes of them stand for gigabytes, and this package writes none.

    Raises:
        DataError: If it is no YAML, too large, or has aliases.
        OSError: If there is no such file.
    """
    text = path.read_bytes()
    try:
        levels = accumulate(
            isinstance(event, yaml.CollectionStartEvent)
            - isinstance(event, yaml.CollectionEndEvent)
            # an alias stands for levels without end
            + LEVELS * isinstance(event, yaml.AliasEvent)
            for event in yaml.parse(text, LOADER)
        )
        if len(text) > MOST or any(level > LEVELS for level in levels):
            raise yaml.YAMLError("it is too large or too deep for a configuration, or has aliases")
        return yaml.load(text, LOADER)
    except (yaml.YAMLError, ValueError) as error:
        raise DataError(f"{path} is not a readable configuration ({' '.join(str(error).split())[:200]}).") from None


def refuse_endless(node: Any, name: str) -> None:
    """Refuse nested containers with more levels or values than an honest configuration has.

    Containers that hold one another several times, or themselves, are counted as often as they are met.

    Args:
        node: Plain containers.
        name: What they are, for the error.

    Raises:
        DataError: If there are too many.

    Example:
        >>> refuse_endless({"a": [1, {"b": 2}]}, "config")
        >>> endless = [0]
        >>> endless.append(endless)
        >>> refuse_endless(endless, "config")
        Traceback (most recent call last):
        ...
        eblvm_lit.errors.DataError: config has too many levels or values for a configuration.
    """
    level = [node]
    for _ in range(LEVELS):
        inside = ((*x, *x.values()) if isinstance(x, dict) else x for x in level if isinstance(x, dict | list | tuple))
        level = list(islice(chain.from_iterable(inside), MOST)) if len(level) < MOST else level
    if level:
        raise DataError(f"{name} has too many levels or values for a configuration.")


def read_tensors(path: Path) -> Any:
    """Read what ``torch.save`` wrote, as data: nothing in it is executed.

    The checksums of the file are compared first, because ``torch.load`` gives other values without a word where bits
    have changed.

    Raises:
        DataError: If it is damaged, cut off or another kind of file, holds more than data, or is compressed.
    """
    import torch  # takes seconds, for which errors in the command need not wait

    try:
        with zipfile.ZipFile(path) as file:
            members = file.infolist()
            # a folder, of which torch reads nothing, or a pickle without end
            odd = [
                x for x in members if x.external_attr & 16 or (x.filename.endswith(".pkl") and x.file_size > 32 * MOST)
            ]
            if odd or sum(x.file_size for x in members) > path.stat().st_size or file.testzip():
                raise zipfile.BadZipFile
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises half a dozen types for files that are none of its own
        found = re.search(r"GLOBAL\s+([\w.]+)", str(error))
        reason = f"it names {found[1]}, and only data are read" if found else "damaged, cut off, or of another kind"
        raise DataError(f"{path} is not a readable checkpoint ({reason}).") from None
