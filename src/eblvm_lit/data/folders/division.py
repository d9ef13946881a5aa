"""The list of all images in folders, ordered by split, with the label of each image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from eblvm_lit.data.folders.contents import contents_of
from eblvm_lit.data.folders.label_file import in_order, labels_of
from eblvm_lit.data.folders.listing import LABELS, Found, folders_of_splits, list_images
from eblvm_lit.data.splitting import NAMES, fraction_of, refuse_empty, split_of
from eblvm_lit.errors import DataError

__all__ = ["Listing", "list_folders"]


class Listing(NamedTuple):
    """The images of all folders, in the order of their splits.

    Attributes:
        files: The images: first those for training, then those for validation, then those for testing.
        counts: The numbers of images in the three splits.
        digests: A digest of each image, 16 bytes each.
        labels: The index of each image's class, int64, shape (n,); None without classes.
        class_names: The names of the classes; None without classes.
        peak: The largest value of all 16-bit images; -1 if there are none.
        notes: What the user has to know about the files, one sentence each.
    """

    files: list[Path]
    counts: tuple[int, int, int]
    digests: list[bytes]
    labels: np.ndarray | None
    class_names: tuple[str, ...] | None
    peak: float
    notes: list[str]


def list_folders(
    path: Path | None,
    given: Mapping[str, Path | None],
    *,
    cache: Path,
    sizes: Mapping[str, float],
    seed: int = 0,
) -> Listing:
    """List the images of a folder or of one folder per split; a split that has no folder takes training images.

    Args:
        path: The folder of all images, or of the folders of splits.
        given: The folders of ``train``, ``val`` and ``test``; None for a split without a folder of its own.
        cache: The folder in which descriptions of the image files are cached.
        sizes: The sizes of ``val`` and ``test`` where they have no folders: fractions or numbers of images.
        seed: The seed of the hash by which images are chosen.

    Raises:
        DataError: If a folder or a split has no images, if labels or classes do not fit, or for a TIFF file of several
            pages.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> folder = Path(tempfile.mkdtemp())
        >>> for i in range(20):
        ...     Image.new("L", (8, 8), i).save(folder / f"{i}.pgm")
        >>> list_folders(folder, {}, cache=Path(tempfile.mkdtemp()), sizes={"val": 0.2, "test": 0.2}).counts
        (10, 5, 5)
    """
    folders = folders_of_splits(path, given)
    found = {name: list_images(folders[name]) for name in NAMES if name in folders}
    files = [file for part in found.values() for file in part.files]
    name = str(path or folders["train"])
    contents = contents_of(files, folder=cache, name=Path(name).name)
    digests = contents.digests()
    labels = _labels(path, folders, found)
    split = np.repeat([NAMES.index(one) for one in found], [len(part.files) for part in found.values()])
    missing = {one: size for one, size in sizes.items() if one not in found}
    split = _divided(split, digests, missing, seed, name)
    order = sorted(range(len(files)), key=lambda i: (split[i], digests[i], i))
    notes = _repeated(order, split, digests, files)
    if skipped := sorted(one for part in found.values() for one in part.skipped):
        notes.append(f"{len(skipped)} files were skipped, whose formats are not read, such as {skipped[0]}.")
    class_names = None if labels is None else in_order(labels)
    numbers = {one: i for i, one in enumerate(class_names or ())}
    return Listing(
        [files[i] for i in order],
        tuple(np.bincount(split, minlength=3).tolist()),
        [digests[i] for i in order],
        None if labels is None else np.array([numbers[labels[i]] for i in order]),
        class_names,
        float(contents.peak),
        notes,
    )


def _labels(path: Path | None, folders: Mapping[str, Path], found: Mapping[str, Found]) -> list[str] | None:
    """Return the labels of the files of all splits; None if there are no labels."""
    labels: dict[str, list[str] | None] = {}
    for name, part in found.items():
        # A table for all splits lies beside the folders of the splits.
        places = [folders[name], *([path] if path is not None and folders[name].parent == path else [])]
        table = next((place / LABELS for place in places if (place / LABELS).is_file()), None)
        labels[name] = part.classes if table is None else labels_of(table, part.files)
    for name, part in labels.items():
        if odd := {*(labels["train"] or ())} ^ {*(part or ())}:
            raise DataError(f"{folders['train']} and {folders[name]} must have the same classes; {min(odd)} is in one.")
    return None if labels["train"] is None else [label for part in labels.values() for label in part or ()]


def _divided(
    split: np.ndarray, digests: Sequence[bytes], sizes: Mapping[str, float], seed: int, name: str
) -> np.ndarray:
    """Divide the training images by their digests; return the split of each image, or raise if a split is empty."""
    free = np.flatnonzero(split == 0)
    shares = {"val": 0.0, "test": 0.0, **{one: fraction_of(size, len(free)) for one, size in sizes.items()}}
    divided = split.copy()
    divided[free] = split_of([digests[i] for i in free], seed=seed, **shares)
    refuse_empty(np.bincount(divided, minlength=3).tolist(), name)
    return divided


def _repeated(order: Sequence[int], split: np.ndarray, digests: Sequence[bytes], files: Sequence[Path]) -> list[str]:
    """Return warnings about identical images in different splits, which can occur if splits have separate folders."""
    first: dict[bytes, int] = {}
    pairs = []
    for i in order:
        other = first.setdefault(digests[i], i)
        if split[other] != split[i]:
            pairs.append((files[i], files[other]))
    if not pairs:
        return []
    one, other = pairs[0]
    return [f"Of the images for validation and testing, {len(pairs)} equal one in another split: {one} is {other}."]
