"""The search for images in folders, which finds the folders of splits, the classes, and files to skip."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from eblvm_lit.data.files import UNREAD, visible
from eblvm_lit.errors import DataError

__all__ = ["LABELS", "Found", "folders_of_splits", "list_images", "names_of"]

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
PACKING = "__MACOSX"  # a folder that macOS adds to archives
# The folder of decoded images. It lies among the original images if data.root is their folder.
PREPARED = "prepared"


class Found(NamedTuple):
    """The result of a search below a folder: its images sorted by path, the class of each image, and skipped files.

    ``classes`` is None if the folder has no class folders.
    """

    files: list[Path]
    classes: list[str] | None
    skipped: list[str]


def folders_of_splits(
    path: Path | None, given: Mapping[str, Path | None], split_folders: bool | None = None
) -> dict[str, Path]:
    """Find the folder of each split; a split without a folder is later drawn from the training images.

    Args:
        path: A folder of images, or of one folder per split (``train``, ``val``, ``test``, or another usual name of a
            split, in upper or lower case).
        given: The folders that the user gives for ``train``, ``val`` and ``test``; None for a split without one.
        split_folders: Whether folders of these names are splits; None means yes, but raises if there are others, too.

    Raises:
        DataError: If there are no images to train on, if two folders are for one split, or if folders of splits lie
            beside others.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name in ("Training", "valid"):
        ...     (folder / name).mkdir()
        >>> {split: found.name for split, found in folders_of_splits(folder, {}).items()}
        {'train': 'Training', 'val': 'valid'}
    """
    found = {split: folder for split, folder in given.items() if folder is not None}
    if path is None and "train" not in found:
        raise DataError("No folder holds images to train on: set data.path, or data.train, to a folder of images.")
    if path is not None and "train" in found:
        raise DataError("data.path and data.train both name the images to train on: leave one of them out.")
    return found if path is None else {**_named_splits(path, split_folders), **found}


def _named_splits(path: Path, split_folders: bool | None) -> dict[str, Path]:
    entries = visible(path)
    folders = [entry for entry in entries if entry.is_dir() and not _is_ignored(entry)]
    splits = [folder for folder in folders if folder.name.lower() in SPLITS]
    if split_folders is False or not (splits or split_folders):
        return {"train": path}
    found: dict[str, Path] = {}
    for folder in splits:
        other = found.setdefault(SPLITS[folder.name.lower()], folder)
        if other != folder:
            raise DataError(f"{path} holds {other.name} and {folder.name}, which are one split: keep one of them.")
    loose = [entry for entry in entries if entry.is_file() and _kind(entry.name) == "image"]
    if split_folders is None and (odd := [entry for entry in (*folders, *loose) if entry not in splits]):
        names = ", ".join(folder.name for folder in splits)
        hint = "set data.split_folders to true if the former are splits, and to false if all folders are classes"
        raise DataError(f"{path} holds {names} and {odd[0].name}: {hint}.")
    if "train" not in found:
        names = " and ".join(folder.name for folder in splits) or "no folder of a split"
        raise DataError(f"{path} holds {names}, but none to train on: add a folder train, or set data.train to one.")
    return found


def list_images(folder: Path) -> Found:
    """List the images in a folder and all its subfolders; the direct subfolders, if any, are classes.

    Hidden folders are left out. If the folder holds a file :data:`LABELS`, subfolders are not classes.

    Raises:
        DataError: If there is no image, if images lie beside class folders or a class has none, or for files that
            must be converted first: videos, archives, and images in formats that are not read.
    """
    visible(folder)
    files: list[Path] = []
    skipped: list[str] = []
    for top, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".") and not _is_ignored(Path(top, name))]
        for name in names:
            path = Path(top, name)
            kind = _kind(name)
            if kind == "image":
                files.append(path)
            elif kind:
                raise DataError(f"{path} is {kind}.")
            elif path != folder / LABELS:
                skipped.append(name)
    files.sort()
    if not files:
        raise DataError(f"{folder} holds no images: set data.path to a folder that does.")
    return Found(files, None if (folder / LABELS).is_file() else _classes(folder, files), sorted(skipped))


def _classes(folder: Path, files: Sequence[Path]) -> list[str] | None:
    """Return the class of each file: the name of the direct subfolder that contains it; None without subfolders."""
    within = [path.relative_to(folder).parts for path in files]
    empty = {path.name for path in visible(folder) if path.is_dir() and not _is_ignored(path)}
    empty -= {parts[0] for parts in within if len(parts) > 1}
    if empty:
        raise DataError(f"{folder / min(empty)} holds no images: fill the folder or take it away.")
    if all(len(parts) == 1 for parts in within):
        return None
    if loose := [parts[0] for parts in within if len(parts) == 1]:
        raise DataError(f"{folder} holds folders and the image {loose[0]}: it must hold only folders or only images.")
    return [parts[0] for parts in within]


def _is_ignored(folder: Path) -> bool:
    """Return whether a folder is ignored, because macOS added it or because it holds the decoded images."""
    if folder.name == PREPARED:
        return not any(_kind(path.name) == "image" for path in folder.rglob("*") if path.is_file())
    return folder.name == PACKING


def _kind(name: str) -> str:
    """Return ``image`` for the name of an image, an empty string for a file to skip, or the reason for a rejection.

    Example:
        >>> _kind("a.PNG"), _kind("notes.txt"), _kind("film.mp4")
        ('image', '', 'a video, which is not read: extract its frames as images')
    """
    suffix = Path(name).suffix.lower()
    if name.startswith("."):
        return ""
    return "image" if suffix in IMAGES else UNREAD.get(suffix, "")


def names_of(skipped: Sequence[str]) -> str:
    """Describe the skipped files in one line: several files of one suffix by the suffix, other files by name.

    Example:
        >>> names_of([".DS_Store", ".DS_Store", "a.txt", "b.txt", "Thumbs.db"])
        '.DS_Store (2), *.txt (2), Thumbs.db'
    """
    suffixes = Counter(Path(name).suffix for name in skipped)
    kinds = (f"*{s}" if (s := Path(name).suffix) and suffixes[s] > 1 else name for name in skipped)
    return ", ".join(f"{kind} ({n})" if n > 1 else kind for kind, n in Counter(kinds).items())
