"""What data sets read that is never downloaded: looked for before anything that takes seconds to import."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eblvm_lit.errors import DataError

__all__ = ["FACES", "FACES_URL", "faces_file", "look_for_files", "visible"]

FACES = "frey_rawface.mat"
FACES_URL = f"https://cs.nyu.edu/~roweis/data/{FACES}"


def look_for_files(data: Mapping[str, Any]) -> None:
    """Refuse the configuration of a data set whose files are not there.

    Raises:
        DataError: Says which, and where it was looked for.

    Example:
        >>> look_for_files({"_target_": "eblvm_lit.data.image_folder.ImageFolder", "path": "nowhere"})
        Traceback (most recent call last):
        eblvm_lit.errors.DataError: There is no folder .../nowhere with images, or folders of them: set ...
    """
    name = data["_target_"]
    if name == "eblvm_lit.data.image_folder.ImageFolder":
        visible(Path(data["path"]).expanduser().absolute())
    elif name == "eblvm_lit.data.frey_face.FreyFace":
        faces_file(Path(data["root"]))


def visible(folder: Path) -> list[Path]:
    """The entries of a folder by name, without hidden ones.

    Raises:
        DataError: The folder is missing or empty.
    """
    entries = sorted(path for path in folder.glob("*") if not path.name.startswith("."))
    if not entries:
        raise DataError(f"There is no folder {folder} with images, or folders of them: set data.path to one.")
    return entries


def faces_file(root: Path) -> Path:
    """The file of the Frey faces in a folder.

    Raises:
        DataError: It is missing.
    """
    path = root.expanduser().absolute() / FACES
    if not path.is_file():
        raise DataError(f"{path} is missing: put {FACES_URL} there or set data.root to the folder that holds it.")
    return path
