"""Readers of files that a stranger may have written: what is damaged, or too large to be honest, is refused."""

from __future__ import annotations

import re
import zipfile
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from eblvm_lit.errors import DataError

__all__ = ["read_arrays", "read_tensors", "read_yaml", "refuse_endless"]

# Limits that files of this package are far from: a configuration has 10 kB, 300 values and 8 levels, and the pickle
# of a checkpoint has 150 bytes for each tensor.
MOST = 2**18
LEVELS = 40
MOST_PICKLED = 2**23
FOLDER = 16  # the attribute of a folder in a zip file
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where PyYAML is built with it


def read_yaml(path: Path) -> Any:
    """Read a configuration as plain containers; interpolations stay text.

    Aliases are refused: some hundred bytes of them stand for gigabytes, and this package writes none.

    Raises:
        DataError: If it is no YAML, too large, or has aliases.
        OSError: If there is no such file.
    """
    text = path.read_bytes()
    levels = 0
    try:
        for event in yaml.parse(text[: MOST + 1], LOADER):
            levels += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if len(text) > MOST or levels > LEVELS or isinstance(event, yaml.AliasEvent):
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
        inner = ((*x, *x.values()) if isinstance(x, dict) else x for x in level if isinstance(x, dict | list | tuple))
        level = list(islice(chain.from_iterable(inner), MOST)) if len(level) < MOST else level
    if level:
        raise DataError(f"{name} has too many levels or values for a configuration.")


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read what ``numpy.savez`` wrote, which compares checksums.

    Raises:
        DataError: If the file is damaged.
    """
    try:
        with np.load(path) as file:
            return dict(file)
    except Exception as error:  # a damaged file raises one of half a dozen types
        raise DataError(f"{path} is damaged ({error}): delete it, and it is made anew.") from None


def read_tensors(path: Path) -> Any:
    """Read what ``torch.save`` wrote, as data: nothing in it is executed.

    The checksums of the file are compared first, because ``torch.load`` gives other values without a word where bits
    have changed.

    Raises:
        DataError: If it is damaged, cut off or another kind of file, holds more than data, or is compressed.
    """
    try:
        with zipfile.ZipFile(path) as file:
            sizes = {member: member.file_size for member in file.infolist()}  # more than the file's if compressed
            pickled = sum(size for member, size in sizes.items() if member.filename.endswith(".pkl"))
            folders = any(member.external_attr & FOLDER for member in sizes)  # which torch does not fill
            if sum(sizes.values()) > path.stat().st_size or pickled > MOST_PICKLED or folders or file.testzip():
                raise zipfile.BadZipFile
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises half a dozen types for files that are none of its own
        found = re.search(r"GLOBAL\s+([\w.]+)", str(error))
        reason = f"it names {found[1]}, and only data are read" if found else "damaged, or another kind of file"
        raise DataError(f"{path} is not a readable checkpoint ({reason}).") from None
