"""Checks of the free disk space before anything is written."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from eblvm_lit.errors import DataError

__all__ = ["check_room", "n_bytes"]


def n_bytes(content: Any) -> int:
    """Bytes of all tensors in nested containers.

    Example:
        >>> import torch
        >>> n_bytes({"a": torch.zeros(3), "b": [torch.zeros(2, dtype=torch.float64), "text"]})
        28
    """
    if isinstance(content, Tensor):
        return content.numel() * content.element_size()
    if isinstance(content, Mapping):
        return sum(map(n_bytes, content.values()))
    if isinstance(content, Sequence) and not isinstance(content, str):
        return sum(map(n_bytes, content))
    return 0


def check_room(folder: Path, needed: int, what: str) -> None:
    """Refuse a folder whose disk is too full.

    Args:
        folder: The folder, which need not exist yet.
        needed: The required space in bytes.
        what: What needs the space, for the message.

    Raises:
        DataError: If the disk has less free space.

    Example:
        >>> check_room(Path("/"), 10**18, "the checkpoints")
        Traceback (most recent call last):
        eblvm_lit.errors.DataError: the checkpoints need 1,000,000,000,000.0 MB in / and ... MB are free: make room, ...
    """
    existing = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise DataError(
            f"{what} need {needed / 1e6:,.1f} MB in {folder} and {free / 1e6:,.1f} MB are free: make room, or choose "
            "another folder."
        )
