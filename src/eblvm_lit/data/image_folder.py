"""Images of any folder, with or without one subfolder per class."""

from __future__ import annotations

import functools
import math
import os
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.data.images import ImageDataModule, Images, check_count, count_of
from eblvm_lit.data.prepared_files import decode_once, fingerprint, open_image, stamps, to_array
from eblvm_lit.errors import ConfigError, DataError

__all__ = ["ImageFolder"]

MODES = ("L", "RGB")
SIDES = (8, 16, 32)  # all networks of images take these, and 32 x 32 pixels train in minutes on a CPU
MAX_SIDE = 4096  # pixels; more than any energy of images takes
N_MEASURED = 1000  # images whose headers are read to choose a size


class Listing(NamedTuple):
    """The files of a folder, training images first, then n_test test images; labels (n,) if there are classes."""

    files: list[Path]
    n_test: int
    labels: torch.Tensor | None
    class_names: tuple[str, ...] | None


@dataclass(kw_only=True, eq=False)
class ImageFolder(ImageDataModule):
    """The images in a folder, (channels, H, W); subfolders, if any, are classes and give the labels.

    The folder contains images, or one subfolder of images per class. It may be divided into ``train`` and ``test``,
    each organised like this; otherwise a fixed random choice of test_size images is the test split. The first use
    decodes the images into ``root/prepared``; later uses memory-map that file. After any change of the folder, the
    images are decoded again.

    Args:
        path: The folder.
        root: Folder for the decoded images.
        size: Height and width after cropping to a square and resampling; None keeps the size, which must be the same
            for all images. Runs choose one: see :meth:`find_options`.
        crop: Height and width of the central square; None with a size crops the largest square.
        channels: 1 (grey) or 3 (colour), to which the files are converted; None: as they are.
        split_folders: Whether the folder has ``train`` and ``test``; None: if it contains no other folders.
        test_size: Number of test images, if there are no such folders, or a fraction of all images.
        value_range, flip, val_size, train_on_val, flatten, batch_size, eval_batch_size, seed: As in the base class;
            the validation images are a fixed random choice.

    Raises:
        ConfigError: If size, crop, channels or test_size is impossible.
        DataError: At loading, if the folder is missing or empty, a file is not an image, or the images differ in mode
            or, without size and crop, in size.

    Example:
        >>> ImageFolder(path="nowhere", root="nowhere", size=32, channels=1).event_shape
        (1, 32, 32)
        >>> ImageFolder(path="nowhere", root="nowhere").setup()
        Traceback (most recent call last):
        eblvm_lit.errors.DataError: There is no folder .../nowhere: set data.path to one with images.
    """

    path: str | Path
    size: int | None = None
    crop: int | None = None
    channels: Literal[1, 3] | None = 3
    split_folders: bool | None = None
    test_size: int | float = 1000
    val_size: int | float = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("test_size", self.test_size)
        for name in ("size", "crop"):
            if (value := getattr(self, name)) is not None and not 1 <= value <= MAX_SIDE:
                raise ConfigError(f"data.{name} must be between 1 and {MAX_SIDE} pixels, and is {value}.")
        if self.channels not in (1, 3, None):
            raise ConfigError(f"data.channels is 1 (grey) or 3 (colour), or null (as the files), not {self.channels}.")
        self.path = Path(self.path).expanduser().absolute()

    @functools.cached_property
    def image_shape(self) -> tuple[int, int, int]:
        """(channels, H, W); without size and crop, the shape of the first image."""
        side, channels = self.size or self.crop, self.channels or (1 if self._first[0] == "L" else 3)
        return (channels, side, side) if side else (channels, *self._first[1])

    def find_options(self) -> tuple[dict[str, Any], str]:
        """A size, channels and a batch size for what is in the folder, where they are open or cannot be.

        The size is that of 8, 16 and 32 pixels which is nearest to the shorter side of a typical image, or the crop.

        Example:
            >>> import tempfile
            >>> from PIL import Image
            >>> folder = Path(tempfile.mkdtemp())
            >>> for i in range(20):
            ...     Image.new("L", (28, 28)).save(folder / f"{i}.png")
            >>> ImageFolder(path=folder, root=folder, channels=None, test_size=0.1, val_size=0.1).find_options()
            ({'size': 32, 'channels': 1, 'batch_size': 18}, '20 grey images of 28 x 28 pixels in ...')
        """
        found: dict[str, Any] = {}
        if self.size is None:
            found["size"] = self.crop or min(SIDES, key=lambda side: abs(math.log2(side / self._typical_side)))
        if self.channels is None:
            found["channels"] = self.image_shape[0]
        n_test, n = self._listing.n_test, len(self._listing.files) - self._listing.n_test
        n_val = count_of(self.val_size, n)
        n_train = n if self.train_on_val else n - n_val
        if 0 < n_train < self.batch_size:
            found["batch_size"] = n_train
        kind = "grey" if self._first[0] == "L" else "colour"
        changes = "; ".join(f"data.{name}={value}" for name, value in found.items())
        return found, (
            f"{n + n_test} {kind} images of {self._pixels()} in {self.path}, {n_train} for training, {n_val} for "
            f"validation and {n_test} for testing: {changes}."
        )

    def _pixels(self) -> str:
        """The sizes of the images in words."""
        shapes = sorted(self._shapes, key=math.prod)
        first, last = (f"{height} x {width}" for height, width in (shapes[0], shapes[-1]))
        return f"{first} pixels" if first == last else f"{first} to {last} pixels"

    @functools.cached_property
    def _shapes(self) -> list[tuple[int, int]]:
        """Height and width of the images, of large folders of some at equal distances."""
        shapes, files = [], sorted(self._listing.files)
        for path in files[:: -(-len(files) // N_MEASURED)]:
            with open_image(path) as image:
                shapes.append(image.size[::-1])
        return shapes

    @property
    def _typical_side(self) -> float:
        return statistics.median(min(shape) for shape in self._shapes)

    def read(self) -> Images:
        """List the folder, and decode its images at the first use."""
        listing = self._listing
        self.class_names = listing.class_names
        key = fingerprint(stamps(listing.files), self.image_shape, self.crop)
        target = self.root / "prepared" / f"{self.path.name[:50]}_{'x'.join(map(str, self.image_shape))}_{key}.npy"
        images, n = decode_once(target, listing.files, self._decode, self.image_shape), -listing.n_test
        labels = listing.labels
        return Images(images[:n], images[n:], *(() if labels is None else (labels[:n], labels[n:])))

    @functools.cached_property
    def _listing(self) -> Listing:
        if not os.path.isdir(self.path):  # unlike Path.is_dir, it raises no error for a name that is too long
            raise DataError(f"There is no folder {self.path}: set data.path to one with images.")
        if self._has_split_folders():
            train, test = (list_images(self.path / name) for name in ("train", "test"))
            if train[2] != test[2]:
                odd = sorted(set(train[2] or ()) ^ set(test[2] or ()))
                raise DataError(
                    f"{self.path}/train and {self.path}/test must have the same classes; {odd[0]} is in one."
                )
            order, n_test = shuffled(len(train[0]), "train"), len(test[0])
            order += range(len(order), len(order) + n_test)
            files, labels, class_names = train[0] + test[0], train[1] + test[1], train[2]
        else:
            files, labels, class_names = list_images(self.path)
            order, n_test = shuffled(len(files), "all"), count_of(self.test_size, len(files))
            if n_test >= len(files):
                raise DataError(
                    f"{self.path} holds {len(files)} images, of which data.test_size={self.test_size} would be for "
                    "testing: lower it."
                )
        chosen = torch.tensor(labels)[order] if class_names else None
        return Listing([files[i] for i in order], n_test, chosen, class_names)

    def _has_split_folders(self) -> bool:
        found = {entry.name for entry in self.path.iterdir() if entry.is_dir() and not entry.name.startswith(".")}
        split = {"train", "test"} <= found
        if self.split_folders is None and split and len(found) > 2:
            raise DataError(
                f"{self.path} holds train, test and {min(found - {'train', 'test'})}: set data.split_folders to say "
                "whether train and test are parts or classes."
            )
        if self.split_folders and not split:
            raise DataError(f"{self.path} does not hold the folders train and test, as data.split_folders=true says.")
        return split if self.split_folders is None else self.split_folders

    @functools.cached_property
    def _first(self) -> tuple[str, tuple[int, int]]:
        """Mode and (height, width) of the first image by name, which all others must share."""
        path = min(self._listing.files)
        with open_image(path) as image:
            if image.mode not in MODES:
                raise DataError(f"{path} is of mode {image.mode} instead of L (grey) or RGB (colour): convert it.")
            return image.mode, image.size[::-1]

    def _decode(self, path: Path) -> np.ndarray:
        mode, shape = self._first
        with open_image(path) as image:
            if image.mode != mode:
                raise DataError(
                    f"{path} is of mode {image.mode}, and {min(self._listing.files).name} of mode {mode}: a folder's "
                    "images must be of one mode."
                )
            if self.size is self.crop is None and image.size[::-1] != shape:
                raise DataError(
                    f"{path} is {image.height} x {image.width} pixels, and {min(self._listing.files).name} "
                    f"{shape[0]} x {shape[1]}: set data.size to bring all to one size."
                )
            crop = min(image.size) if self.crop is None and self.size is not None else self.crop
            pixels = image.convert(MODES[self.image_shape[0] == 3])
            return to_array(pixels, path, crop=crop, size=self.image_shape[1:])


def shuffled(n: int, name: str) -> list[int]:
    """A fixed random order: files are sorted by class, so without it the splits would have different distributions."""
    return torch.randperm(n, generator=keyed_generator(0, "image_folder", name)).tolist()


def visible(folder: Path) -> list[Path]:
    """The entries of a folder by name, without hidden ones."""
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def list_images(folder: Path) -> tuple[list[Path], list[int], tuple[str, ...] | None]:
    """List the files of a folder, or of its subfolders, which then are classes.

    Returns:
        The files by name, the class index of each (0 without classes), and the class names or None.

    Raises:
        DataError: The folder or a class folder is empty, or contains both files and folders.
    """
    entries = visible(folder)
    if not entries:
        raise DataError(f"{folder} is empty: it must hold images, or folders of them.")
    classes = [path for path in entries if path.is_dir()]
    if not classes:
        return entries, [0] * len(entries), None
    if len(classes) < len(entries):
        odd = next(path for path in entries if not path.is_dir())
        raise DataError(f"{folder} holds folders and the file {odd.name}: it must hold images, or folders of them.")
    files, labels = [], []
    for label, path in enumerate(classes):
        found = visible(path)
        if not found:
            raise DataError(f"{path} is empty: it must hold images.")
        if odd := next((file for file in found if file.is_dir()), None):
            raise DataError(f"{odd} is a folder: the folder of a class must hold images alone.")
        files += found
        labels += [label] * len(found)
    return files, labels, tuple(path.name for path in classes)
