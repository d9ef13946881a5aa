"""The images in any folder, with or without one subfolder per class."""

from __future__ import annotations

import functools
import logging
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from PIL import Image
from pydantic import PositiveInt

from eblvm_lit.core.ranges import Fraction
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.data.files import visible
from eblvm_lit.data.images import ImageDataModule, Images, count_of
from eblvm_lit.data.prepared_files import decode_image, decode_once, fingerprint, open_image, size_of
from eblvm_lit.errors import DataError

__all__ = ["ImageFolder"]

log = logging.getLogger(__name__)

VERSION = "upright"  # version of the decoding: prepared files of another version are not used
SIDES = (8, 16, 32)  # sizes that all image networks support; 32 x 32 pixels train in minutes on a CPU
KINDS = {1: "grey", 3: "colour"}
N_MEASURED = 1000  # largest number of images whose headers are read to choose a size


class Listing(NamedTuple):
    """The files of a folder: first training images, then n_test test images; with labels (n,) if there are classes."""

    files: list[Path]
    n_test: int
    labels: torch.Tensor | None
    class_names: tuple[str, ...] | None


@dataclass(kw_only=True, eq=False)
class ImageFolder(ImageDataModule):
    """The images in a folder, each of shape (channels, H, W); subfolders, if any, are classes and define the labels.

    The folder contains images, or one subfolder of images per class. It may be divided into two folders ``train`` and
    ``test``, each organised in this way; otherwise a fixed random choice of ``test_size`` images is the test split. The
    first use decodes the images, rotated as image viewers show them, into ``root/prepared``; later uses memory-map that
    file. If anything in the folder has changed, the images are decoded again.

    Args:
        path: The folder of the images.
        root: Folder for the decoded images.
        size: Height and width after cropping to a square and resampling; None keeps the size, which must be the same
            for all images. Runs replace None by a fitting size: see :meth:`find_options`.
        crop: Height and width of the central square in pixels; if None and ``size`` is given, the largest square is
            cropped.
        channels: Number of channels to which the images are converted: 1 (grey) or 3 (colour). None means grey if all
            images are grey.
        split_folders: Whether the folder is divided into ``train`` and ``test``; None means yes if both exist. Other
            folders beside these two are then an error.
        test_size: Number of test images, or their fraction of all images, if the folder is not divided.
        value_range, flip, val_size, train_on_val, flatten, batch_size, eval_batch_size, seed: As in the base class;
            the validation images are a fixed random choice.

    Raises:
        DataError: Raised by ``setup`` if the folder is missing or empty, if a file cannot be decoded, or if the images
            differ in size and neither ``size`` nor ``crop`` is given.

    Example:
        >>> ImageFolder(path="nowhere", root="nowhere", size=32, channels=1).event_shape
        (1, 32, 32)
        >>> ImageFolder(path="nowhere", root="nowhere").setup()
        Traceback (most recent call last):
        eblvm_lit.errors.DataError: .../nowhere is not a folder with images, or with subfolders of images: ...
    """

    path: str | Path
    size: PositiveInt | None = None
    crop: PositiveInt | None = None
    channels: Literal[1, 3] | None = 3
    split_folders: bool | None = None
    test_size: PositiveInt | Fraction = 1000
    val_size: PositiveInt | Fraction = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        self.path = Path(self.path).expanduser().absolute()

    @functools.cached_property
    def image_shape(self) -> tuple[int, int, int]:
        """Return (channels, H, W), where H and W are the first image's if neither size nor crop is given."""
        side = self.size or self.crop
        channels = self.channels or (1 if set(map(Image.getmodebase, self._headers[0])) == {"L"} else 3)
        return (channels, *((side, side) if side else self._headers[1][0]))

    def find_options(self) -> tuple[dict[str, Any], str]:
        """Choose a size and channels if they are None, and a batch size if there are too few images for the given one.

        The size is the crop if that is given, and otherwise the one among 8, 16 and 32 pixels that is nearest to the
        shorter side of a typical image.

        Example:
            >>> import tempfile
            >>> folder = Path(tempfile.mkdtemp())
            >>> for i in range(20):
            ...     Image.new("L", (28, 28)).save(folder / f"{i}.png")
            >>> ImageFolder(path=folder, root=folder, channels=None, test_size=0.1, val_size=0.1).find_options()
            ({'size': 32, 'channels': 1, 'batch_size': 18}, '20 grey images of 28 x 28 pixels in ...')
        """
        found: dict[str, Any] = {}
        shapes = sorted(self._headers[1], key=math.prod)
        if self.size is None:
            typical = statistics.median(map(min, shapes))
            found["size"] = self.crop or min(SIDES, key=lambda side: abs(math.log2(side / typical)))
        if self.channels is None:
            found["channels"] = self.image_shape[0]
        n_test = self._listing.n_test
        n = len(self._listing.files) - self._listing.n_test
        n_val = count_of(self.val_size, n)
        n_train = n if self.train_on_val else n - n_val
        if 0 < n_train < self.batch_size:
            found["batch_size"] = n_train
        smallest, largest = (f"{height} x {width}" for height, width in (shapes[0], shapes[-1]))
        sizes = smallest if smallest == largest else f"{smallest} to {largest}"
        kind = KINDS[self.image_shape[0]]
        changes = "; ".join(f"data.{key}={value}" for key, value in found.items())
        return found, (
            f"{n + n_test} {kind} images of {sizes} pixels in {self.path}, {n_train} for training, {n_val} for "
            f"validation and {n_test} for testing: {changes}."
        )

    def read(self) -> Images:
        """List the files of the folder, and decode the images unless a prepared file has them."""
        files, n_test, labels, self.class_names = self._listing
        stamps = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
        key = fingerprint(VERSION, stamps, self.image_shape, self.crop)
        shape = self.image_shape
        converted = []
        target = self.root / "prepared" / f"{self.path.name[:50]}_{'x'.join(map(str, shape))}_{key}.npy"
        decode = functools.partial(self._decode, converted=converted)
        images = decode_once(target, lambda: files, decode, shape, len(files))
        if converted:
            what = len(converted), len(files), self.path, KINDS[shape[0]]
            log.info("%d of %d images in %s were converted to %s images of 8 bits.", *what)
        parts = [images[:-n_test], images[-n_test:]]
        return Images(*parts) if labels is None else Images(*parts, labels[:-n_test], labels[-n_test:])

    def _decode(self, path: Path, converted: list[Path]) -> np.ndarray:
        mode = "L" if self.image_shape[0] == 1 else "RGB"
        side = self.size or self.crop
        with open_image(path) as image:
            if image.mode != mode:
                converted.append(path)
        pixels = decode_image(path, mode=mode, crop=self.crop or (0 if side else None), side=side)
        if pixels.shape != self.image_shape:
            (_, height, width) = pixels.shape
            (_, *first) = self.image_shape
            others = f"{min(self._listing.files).name} {first[0]} x {first[1]}"
            raise DataError(f"{path} is {height} x {width} pixels, and {others}: set data.size for one size.")
        return pixels

    @functools.cached_property
    def _headers(self) -> tuple[list[str], list[tuple[int, int]]]:
        """Read the modes and the (height, width) of at most ``N_MEASURED`` images, evenly spaced in order of names."""
        modes = []
        shapes = []
        files = sorted(self._listing.files)
        for path in files[:: -(-len(files) // N_MEASURED)]:
            with open_image(path) as image:
                modes.append(image.mode)
                shapes.append(size_of(image)[::-1])
        return modes, shapes

    @functools.cached_property
    def _listing(self) -> Listing:
        found = {path.name for path in visible(self.path) if path.is_dir()}
        split = {"train", "test"} <= found if self.split_folders is None else self.split_folders
        if split and self.split_folders is None and (odd := found - {"train", "test"}):
            hint = "set data.split_folders to true if train and test are splits, and to false if they are classes"
            raise DataError(f"{self.path} contains train, test and {min(odd)}: {hint}.")
        if split:
            train, test = (list_images(self.path / name) for name in ("train", "test"))
            if odd := set(train[2] or ()) ^ set(test[2] or ()):
                raise DataError(f"{self.path}: train and test must have the same classes; {min(odd)} is only in one.")
            n_train = len(train[0])
            n_test = len(test[0])
            order = [*shuffled(n_train, "train"), *range(n_train, n_train + n_test)]
            files = train[0] + test[0]
            labels = train[1] + test[1]
            class_names = train[2]
        else:
            files, labels, class_names = list_images(self.path)
            order = shuffled(len(files), "all")
            n_test = count_of(self.test_size, len(files))
            if n_test >= len(files):
                hint = f"data.test_size={self.test_size} would be for testing: lower it"
                hint = hint if len(files) > 2 else "training, validation and testing need at least one each"
                raise DataError(f"{self.path} contains {len(files)} images, of which {hint}.")
        chosen = torch.tensor(labels)[order] if class_names else None
        return Listing([files[i] for i in order], n_test, chosen, class_names)


def shuffled(n: int, name: str) -> list[int]:
    """Return a fixed random order of n files.

    Files are sorted by class: without shuffling, the splits would have different distributions.
    """
    return torch.randperm(n, generator=keyed_generator(0, "image_folder", name)).tolist()


def list_images(folder: Path) -> tuple[list[Path], list[int], tuple[str, ...] | None]:
    """List the files in a folder or, if it contains folders, in these, which then are classes.

    Returns:
        The files sorted by class and name, the class index of each (0 without classes), and the class names or None.

    Raises:
        DataError: If the folder or a class folder is empty, or if the folder contains both files and folders.
    """
    entries = visible(folder)
    classes = [path for path in entries if path.is_dir()]
    if not classes:
        return entries, [0] * len(entries), None
    if odd := set(entries) - set(classes):
        raise DataError(f"{folder} contains folders and the file {min(odd).name}: it may contain only one of the two.")
    found = [visible(path) for path in classes]
    labels = [label for label, files in enumerate(found) for _ in files]
    return [path for files in found for path in files], labels, tuple(path.name for path in classes)
