"""The search for images in folders, which finds the folders of splits, the classes, and files to skip."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from eblvm_lit.data.files import visible
from eblvm_lit.errors import DataError

__all__ = ["LABELS", "Found", "folders_of_splits", "list_images"]

LABELS = "labels.csv"
# The split that each folder name stands for; names are compared in lower case.
SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
# The suffixes of files that are read as images; files without a suffix are tried, too.
IMAGES = {
    *("", ".apng", ".bmp", ".dib", ".gif", ".j2c", ".j2k", ".jfif", ".jp2", ".jpc", ".jpe", ".jpeg", ".jpf", ".jpg"),
    *(".jpx", ".mpo", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tga", ".tif", ".tiff", ".webp"),
}


class Found(NamedTuple):
    """The result of a search below a folder: its images sorted by path, the class of each image, and skipped files.

    ``classes`` is None if the folder has no class folders.
    """

    files: list[Path]
    classes: list[str] | None
    skipped: list[str]


def folders_of_splits(path: Path | None, given: Mapping[str, Path | None]) -> dict[str, Path]:
    """Find the folder of each split; a split without a folder is later drawn from the training images.

    Args:
        path: A folder of images, or of one folder per split (``train``, ``val``, ``test``, or another usual name of a
            split, in upper or lower case).
        given: The folders that the user gives for ``train``, ``val`` and ``test``; None for a split without one.

    Raises:
        DataError: If there are no images to train on, or if other images lie beside the folders of splits.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name in ("Training", "valid"):
        ...     (folder / name).mkdir()
        >>> {split: found.name for split, found in folders_of_splits(folder, {}).items()}
        {'train': 'Training', 'val': 'valid'}
    """
    found = {split: folder for split, folder in given.items() if folder is not None}
    if (path is None) == ("train" not in found):
        raise DataError("Set either data.path or data.train to a folder of images to train on.")
    return found if path is None else {**_named_splits(path), **found}


def _named_splits(path: Path) -> dict[str, Path]:
    entries = visible(path)
    folders = [entry for entry in entries if entry.is_dir() and entry.name.lower() in SPLITS]
    if not folders:
        return {"train": path}
    found = {SPLITS[folder.name.lower()]: folder for folder in folders}
    names = ", ".join(folder.name for folder in found.values())
    for entry in entries:
        if entry not in found.values() and any(
            path.is_file() and _is_image(path) for path in (entry, *entry.rglob("*"))
        ):
            raise DataError(
                f"{path} holds {names} and {entry.name}: keep only one folder of each split there or, if these names "
                f"are classes, set data.train={path} instead of data.path."
            )
    if "train" not in found:
        raise DataError(f"{path} holds {names}, but none to train on: add a folder train, or set data.train to one.")
    return found


def list_images(folder: Path) -> Found:
    """List the images in a folder and all its subfolders; the direct subfolders, if any, are classes.

    Hidden folders are left out. If the folder holds a file :data:`LABELS`, subfolders are not classes.

    Raises:
        DataError: If there is no image, or if images lie beside class folders.
    """
    visible(folder)
    files: list[Path] = []
    skipped: list[str] = []
    for top, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(top, name) for name in names):
            if _is_image(path):
                files.append(path)
            elif path != folder / LABELS:
                skipped.append(path.name)
    files.sort()
    if not files:
        raise DataError(f"{folder} holds no images of a format that is read, such as PNG or JPEG.")
    return Found(files, None if (folder / LABELS).is_file() else _classes(folder, files), sorted(skipped))


def _classes(folder: Path, files: Sequence[Path]) -> list[str] | None:
    """Return the class of each file: the name of the direct subfolder that contains it; None without subfolders."""
    within = [path.relative_to(folder).parts for path in files]
    if all(len(parts) == 1 for parts in within):
        return None
    if loose := [parts[0] for parts in within if len(parts) == 1]:
        raise DataError(f"{folder} holds folders and the image {loose[0]}: it must hold only folders or only images.")
    return [parts[0] for parts in within]


def _is_image(path: Path) -> bool:
    return not path.name.startswith(".") and path.suffix.lower() in IMAGES
