"""Functions that read untrusted files, and refuse files that are damaged or suspiciously large."""

from __future__ import annotations

import re
import zipfile
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any

import yaml

from eblvm_lit.errors import DataError

__all__ = ["read_tensors", "read_yaml", "refuse_endless"]

# Limits far above what this package writes. MOST limits the bytes and the values of a configuration, which usually has
# 10 kB, 300 values and 8 levels. The pickle in a checkpoint, with 150 bytes for each tensor, may have 32 * MOST bytes.
MOST = 2**17
LEVELS = 40
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader is ten times as fast, if PyYAML has it


def read_yaml(path: Path) -> Any:
    """Read a YAML configuration file as nested dicts and lists; interpolations are left as text.

    Aliases are refused, because a few hundred bytes of them can stand for gigabytes, and this package writes none.

    Raises:
        DataError: If the file is not YAML, is too large, or has aliases.
        OSError: If there is no such file.
    """
    text = path.read_bytes()
    try:
        levels = accumulate(
            isinstance(event, yaml.CollectionStartEvent)
            - isinstance(event, yaml.CollectionEndEvent)
            # an alias may stand for infinitely many levels, so a single alias exceeds the limit
            + LEVELS * isinstance(event, yaml.AliasEvent)
            for event in yaml.parse(text, LOADER)
        )
        if len(text) > MOST or any(level > LEVELS for level in levels):
            raise yaml.YAMLError("it is too large or too deep for a configuration, or has aliases")
        return yaml.load(text, LOADER)
    except (yaml.YAMLError, ValueError) as error:
        raise DataError(f"{path} is not a readable configuration ({' '.join(str(error).split())[:200]}).") from None


def refuse_endless(node: Any, name: str) -> None:
    """Refuse nested containers with more levels or values than a real configuration could have.

    A container that occurs several times, or inside itself, counts each time.

    Args:
        node: The plain containers.
        name: Their name, for the error.

    Raises:
        DataError: If there are too many levels or values.

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
    """Read a file that ``torch.save`` wrote, without executing any code in it.

    The checksums of the file are compared first, because ``torch.load`` silently returns wrong values if bits have
    changed.

    Raises:
        DataError: If the file is damaged, cut off or of another kind, contains more than data, or is compressed.
    """
    # imported here, because the import takes seconds and errors in the command should appear earlier
    import torch

    try:
        with zipfile.ZipFile(path) as file:
            members = file.infolist()
            # these members of the archive are suspicious: folders, because torch does not read them, and huge pickles
            odd = [
                x for x in members if x.external_attr & 16 or (x.filename.endswith(".pkl") and x.file_size > 32 * MOST)
            ]
            if odd or sum(x.file_size for x in members) > path.stat().st_size or file.testzip():
                raise zipfile.BadZipFile
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises half a dozen types of exceptions for invalid files
        found = re.search(r"GLOBAL\s+([\w.]+)", str(error))
        reason = f"it names {found[1]}, and only data are read" if found else "damaged, cut off, or of another kind"
        raise DataError(f"{path} is not a readable checkpoint ({reason}).") from None
