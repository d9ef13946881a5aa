"""The list of all images in folders, ordered by split, with the label of each image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from eblvm_lit.data.folders.contents import Contents, contents_of
from eblvm_lit.data.folders.label_file import in_order, labels_of
from eblvm_lit.data.folders.listing import LABELS, Found, folders_of_splits, list_images, names_of
from eblvm_lit.data.splitting import NAMES, PURPOSES, fraction_of, split_of
from eblvm_lit.errors import DataError

__all__ = ["Listing", "Page", "list_folders"]

SEEDS = 1000  # number of values of split_seed that are tried, to suggest one for which no split is empty


class Page(NamedTuple):
    """One page of a file, which is one image; files of most formats have only page 0."""

    path: Path
    page: int


class Listing(NamedTuple):
    """The images of all folders, in the order of their splits.

    Attributes:
        pages: The images: first those for training, then those for validation, then those for testing.
        counts: The numbers of images in the three splits.
        digests: A digest of each image, 16 bytes each.
        labels: The index of each image's class, int64, shape (n,); None without classes.
        class_names: The names of the classes; None without classes.
        peak: The largest value of all 16-bit images; -1 if there are none.
        notes: What the user has to know about the files, one sentence each.
    """

    pages: list[Page]
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
    split_folders: bool | None = None,
    skip_damaged: bool = False,
) -> Listing:
    """List the images of a folder or of one folder per split; a split that has no folder takes training images.

    Args:
        path: The folder of all images, or of the folders of splits.
        given: The folders of ``train``, ``val`` and ``test``; None for a split without a folder of its own.
        cache: The folder in which descriptions of the image files are cached.
        sizes: The sizes of ``val`` and ``test`` where they have no folders: fractions or numbers of images.
        seed: The seed of the hash by which images are chosen.
        split_folders: Whether folders of usual names are splits: see
            :func:`~eblvm_lit.data.folders.listing.folders_of_splits`.
        skip_damaged: Whether damaged files are left out of the list.

    Raises:
        DataError: If a folder or a split has no images, if labels or classes do not fit, or for files that would have
            to be converted.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> folder = Path(tempfile.mkdtemp())
        >>> for i in range(20):
        ...     Image.new("L", (8, 8), i).save(folder / f"{i}.pgm")
        >>> list_folders(folder, {}, cache=Path(tempfile.mkdtemp()), sizes={"val": 0.2, "test": 0.2}).counts
        (10, 5, 5)
    """
    folders = folders_of_splits(path, given, split_folders)
    found = {name: list_images(folders[name]) for name in NAMES if name in folders}
    files = [file for part in found.values() for file in part.files]
    name = str(path or folders["train"])
    contents = contents_of(files, folder=cache, name=Path(name).name, check=skip_damaged)
    labels, notes = _labels(path, folders, found)
    if skipped := sorted(one for part in found.values() for one in part.skipped):
        notes.append(f"Files that are no images were skipped: {names_of(skipped)}.")
    if skip_damaged and len(contents.damaged):
        listed = ", ".join(str(files[i]) for i in contents.damaged)
        notes.append(f"Damaged files were left out, {len(contents.damaged)} of {len(files)}: {listed}.")
    split = np.repeat([NAMES.index(one) for one in found], [len(part.files) for part in found.values()])[
        contents.source
    ]
    kept = np.flatnonzero(~np.isin(contents.source, contents.damaged)) if skip_damaged else np.arange(len(split))
    missing = {one: size for one, size in sizes.items() if one not in found}
    split[kept] = _divided(split[kept], contents.digests(kept), missing, seed, name)
    if taken := [PURPOSES[NAMES.index(one)] for one in missing if len(found) > 1]:
        notes.append(f"The images for {taken[0]} are taken from {folders['train']}: there is no folder for them.")
    order = np.array(sorted(kept, key=lambda i: (split[i], contents.digest[i].tobytes(), i)))
    notes += _repeated(order, split, contents, files)
    class_names = None if labels is None else in_order(labels)
    numbers = {one: i for i, one in enumerate(class_names or ())}
    return Listing(
        [Page(files[contents.source[i]], int(contents.page[i])) for i in order],
        tuple(np.bincount(split[kept], minlength=3).tolist()),
        contents.digests(order),
        None if labels is None else np.array([numbers[labels[contents.source[i]]] for i in order]),
        class_names,
        float(contents.peak),
        notes,
    )


def _labels(
    path: Path | None, folders: Mapping[str, Path], found: Mapping[str, Found]
) -> tuple[list[str] | None, list[str]]:
    """Return the labels of the files of all splits (None if there are no labels) and a list of notes on label files."""
    labels: dict[str, list[str] | None] = {}
    notes = []
    for name, part in found.items():
        places = [folders[name], *([path] if path is not None and folders[name].parent == path else [])]
        table = next((place / LABELS for place in places if (place / LABELS).is_file()), None)
        labels[name] = part.classes
        if table is not None:
            labels[name], unused = labels_of(table, part.files)
            # A table for all splits lies beside the folders of the splits. Its unused rows belong to other splits.
            if unused and table.parent == folders[name]:
                notes.append(f"{table} has {unused} rows of images that are not there.")
    train = labels["train"]
    if bare := [name for name, part in labels.items() if (part is None) != (train is None)]:
        raise DataError(f"{folders['train']} and {folders[bare[0]]}: only one of them has classes or {LABELS}.")
    if train is None:
        return None, notes
    for name, part in labels.items():
        if odd := {*train} ^ {*(part or ())}:
            raise DataError(f"{folders['train']} and {folders[name]} must have the same classes; {min(odd)} is in one.")
    return [label for part in labels.values() for label in part or ()], notes


def _divided(
    split: np.ndarray, digests: Sequence[bytes], sizes: Mapping[str, float], seed: int, name: str
) -> np.ndarray:
    """Divide the training images by their digests; return the split of each image, or raise if a split is empty."""
    free = np.flatnonzero(split == 0)
    own = [digests[i] for i in free]
    asked = " and ".join(f"data.{one}_size={size}" for one, size in sizes.items())
    shares = {"val": 0.0, "test": 0.0, **{one: fraction_of(size, len(free)) for one, size in sizes.items()}}
    if sum(shares.values()) >= 1:
        raise DataError(f"{name} holds {len(free)} images to train on, of which {asked} leave none: lower the sizes.")

    def with_seed(number: int) -> np.ndarray:
        whole = split.copy()
        whole[free] = split_of(own, seed=number, **shares)
        return whole

    def empty(whole: np.ndarray) -> list[str]:
        return [PURPOSES[i] for i in range(len(NAMES)) if not (whole == i).any()]

    if lacking := empty(chosen := with_seed(seed)):
        other = next((number for number in range(SEEDS) if not empty(with_seed(number))), None)
        hint = f"raise {asked}" if other is None else f"set data.split_seed={other}, or raise {asked}"
        hint = hint if len({*own}) >= 3 else "add images, since at least three different ones are needed"
        raise DataError(f"{name} holds {len(split)} images, and none of them is for {lacking[0]}: {hint}.")
    return chosen


def _repeated(order: np.ndarray, split: np.ndarray, contents: Contents, files: Sequence[Path]) -> list[str]:
    """Return warnings about identical images in different splits, which can occur if splits have separate folders."""
    first: dict[bytes, int] = {}
    pairs = []
    for i, digest in zip(order, contents.digests(order), strict=True):
        other = first.setdefault(digest, i)
        if split[other] != split[i]:
            pairs.append((files[contents.source[i]], files[contents.source[other]]))
    if not pairs:
        return []
    one, other = pairs[0]
    return [f"Of the images for validation and testing, {len(pairs)} equal one in another split: {one} is {other}."]
