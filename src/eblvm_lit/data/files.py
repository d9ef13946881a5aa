"""Checks of folders of images, which run before torch is imported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eblvm_lit.errors import DataError

__all__ = ["look_for_folder", "visible"]


def look_for_folder(data: Mapping[str, Any]) -> None:
    """Raise an error, before torch is imported, if the configured image folder does not exist or is empty.

    Only data sets of this package are checked. Each data set itself reports, at ``setup``, what else is missing.

    Args:
        data: The configuration of the data.

    Raises:
        DataError: If the folder is missing or empty; the message contains its absolute path.

    Example:
        >>> target = "eblvm_lit.data.image_folder.ImageFolder"
        >>> folder = {"_target_": target, "path": "nowhere", "white": None}
        >>> look_for_folder(folder)
        Traceback (most recent call last):
        eblvm_lit.errors.DataError: .../nowhere is not a folder with images, or with subfolders of images: ...
    """
    # Only the configurations of image folders have the key white.
    if "white" in data and str(data["_target_"]).startswith("eblvm_lit."):
        folders = [data[name] for name in ("path", "train", "val", "test") if data.get(name) is not None]
        for folder in folders:
            visible(Path(str(folder)).expanduser().absolute())


def visible(folder: Path) -> list[Path]:
    """List the entries of a folder that are not hidden, sorted by name.

    Raises:
        DataError: If the folder is missing or empty, or is a file.
    """
    entries = sorted(path for path in folder.glob("*") if not path.name.startswith("."))
    if not entries:
        raise DataError(
            f"{folder} is not a folder with images, or with subfolders of images: set data.path, or images of "
            "evaluate.py, to one (unpack an archive first), or read a file of arrays or a table by data=array."
        )
    return entries
