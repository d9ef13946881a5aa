"""Files that are there as a whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["write_json", "write_text"]


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a mapping as JSON.

    Args:
        path: The file.
        content: What JSON can hold.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "metrics.json"
        >>> write_json(path, {"test/fisher": -1.5})
        >>> json.loads(path.read_text()), [file.name for file in path.parent.iterdir()]
        ({'test/fisher': -1.5}, ['metrics.json'])
    """
    write_text(path, json.dumps(content, indent=2, sort_keys=True) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text under a temporary name and rename it."""
    partial = path.with_name(path.name + ".tmp")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
