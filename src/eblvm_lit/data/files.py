"""Checks for data files that cannot be downloaded, with one clear sentence if one is missing; imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eblvm_lit.errors import DataError

__all__ = ["FACES", "FACES_URL", "faces_file", "look_for_folder", "visible"]

FACES = "frey_rawface.mat"
FACES_URL = f"https://cs.nyu.edu/~roweis/data/{FACES}"


def look_for_folder(data: Mapping[str, Any]) -> None:
    """Raise an error, before torch is imported, if the path of an image folder is no folder with files.

    Only data sets of this package are checked. What else is missing, each data set reports itself at ``setup``.

    Args:
        data: The configuration of the data.

    Raises:
        DataError: If the folder is missing or empty; the message says where it was searched.

    Example:
        >>> folder = {"_target_": "eblvm_lit.data.image_folder.ImageFolder", "path": "nowhere", "root": "."}
        >>> look_for_folder(folder)
        Traceback (most recent call last):
        eblvm_lit.errors.DataError: .../nowhere is not a folder with images, or with subfolders of images: ...
    """
    if {"path", "root"} <= data.keys() and str(data["_target_"]).startswith("eblvm_lit."):
        path = Path(str(data["path"])).expanduser().absolute()
        if path.is_file():
            raise DataError(f"{path} is a file: arrays and tables are data=array data.path={path}.")
        visible(path)


def visible(folder: Path) -> list[Path]:
    """List the entries of a folder, sorted by name, without hidden ones.

    Raises:
        DataError: If the folder is missing or empty.
    """
    entries = sorted(path for path in folder.glob("*") if not path.name.startswith("."))
    if not entries:
        raise DataError(f"{folder} is not a folder with images, or with subfolders of images: set data.path to one.")
    return entries


def faces_file(root: Path) -> Path:
    """Return the path of the file of the Frey faces in a folder.

    Raises:
        DataError: If the file is missing.
    """
    path = root.expanduser().absolute() / FACES
    if not path.is_file():
        raise DataError(f"{path} is missing: put {FACES_URL} there or set data.root to the folder that contains it.")
    return path
