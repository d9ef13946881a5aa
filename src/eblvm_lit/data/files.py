"""Files of data sets that are never downloaded, or one sentence that says where they were looked for."""

from __future__ import annotations

from pathlib import Path

from eblvm_lit.errors import DataError

__all__ = ["FACES", "FACES_URL", "faces_file", "visible"]

FACES = "frey_rawface.mat"
FACES_URL = f"https://cs.nyu.edu/~roweis/data/{FACES}"


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
