"""The data module for images in a folder, with or without one subfolder per class."""

from __future__ import annotations

import functools
import logging
import math
import statistics
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from PIL import Image
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from eblvm_lit.core.ranges import Fraction
from eblvm_lit.data.arrangement import CHANNELS
from eblvm_lit.data.base import Splits
from eblvm_lit.data.folders.contents import stamps_of
from eblvm_lit.data.folders.division import Listing, list_folders
from eblvm_lit.data.held_out import without_classes
from eblvm_lit.data.images import ImageDataModule, Images
from eblvm_lit.data.prepared_files import (
    DamagedImagesError,
    decode_image,
    decode_once,
    fingerprint,
    open_image,
    size_of,
)
from eblvm_lit.data.split_changes import as_integers
from eblvm_lit.data.splitting import NAMES
from eblvm_lit.errors import DataError

__all__ = ["ImageFolder"]

log = logging.getLogger(__name__)

VERSION = "by content"  # version of the decoding code; images that another version has decoded are not used
SIDES = (8, 16, 32)  # sizes that all image networks support; 32 x 32 pixels train in minutes on a CPU
N_MEASURED = 1000  # maximum number of images whose headers are read to choose a size


@dataclass(kw_only=True, eq=False)
class ImageFolder(ImageDataModule):
    """The images in a folder, each of shape (channels, H, W); subfolders, if any, are classes and define the labels.

    The folder contains images, or one subfolder of images per class. A file ``labels.csv`` in it, with a row
    ``file,label`` for each image, defines the labels, too. The folder may be divided into folders ``train``, ``val``
    and ``test``, or two of these, each organised in this way. A split without a folder is taken from the training
    images, by a hash of the content of each file and of ``split_seed``. So adding, removing or renaming images moves no
    other image to another split, and equal files are in the same split. The images in a split are ordered by their
    hashes.

    Of an animation the first frame is used. Files that are not images are skipped. The first use decodes the images,
    rotated as image viewers show them, into ``root/prepared``; later uses memory-map that file. If anything in the
    folder has changed, the images are decoded again.

    Args:
        path: The folder of the images.
        train, val, test: Folders of the splits, in place of ``path`` (``train``) or beside it (``val``, ``test``).
        root: Folder for the decoded images.
        size: Height and width after cropping to a square and resampling; None keeps the size, which must be the same
            for all images. Runs replace None by a suitable size: see :meth:`find_options`.
        crop: Height and width of the central square in pixels; if None and ``size`` is given, the largest square is
            cropped.
        channels: Number of channels to which the images are converted: 1 (grey) or 3 (colour). None means grey if all
            images are grey.
        white: The value of 16-bit images that becomes white; None for their largest value.
        split_seed: The seed of the hash.
        test_size: The fraction of all images that are test images if no folder is given for them; an integer is
            divided by the number of all images.
        val_size: The same for the validation images.
        value_range, flip, train_on_val, flatten, batch_size, eval_batch_size, seed: As in the base class.

    Raises:
        DataError: Raised by ``setup`` if the folder is missing or empty, if files cannot be decoded, or if the images
            differ in size and neither ``size`` nor ``crop`` is given.

    Example:
        >>> ImageFolder(path="nowhere", root="nowhere", size=32, channels=1).event_shape
        (1, 32, 32)
        >>> ImageFolder(path="nowhere", root="nowhere").setup()
        Traceback (most recent call last):
        eblvm_lit.errors.DataError: .../nowhere is not a folder with images, or with subfolders of images: ...
    """

    path: str | Path | None = None
    train: str | Path | None = None
    val: str | Path | None = None
    test: str | Path | None = None
    size: PositiveInt | None = None
    crop: PositiveInt | None = None
    channels: Literal[1, 3] | None = 3
    white: PositiveFloat | None = None
    split_seed: NonNegativeInt = 0
    test_size: PositiveInt | Fraction = 1000
    val_size: PositiveInt | Fraction = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("path", *NAMES):
            if (folder := getattr(self, name)) is not None:
                setattr(self, name, Path(folder).expanduser().absolute())

    @property
    def _name(self) -> str:
        """The path of the image folder, for file names and messages."""
        return str(self.path or self.train)

    @functools.cached_property
    def image_shape(self) -> tuple[int, int, int]:
        """Return (channels, H, W); without a size or crop, H and W are those of the first image."""
        side = self.size or self.crop
        channels = self.channels or (1 if set(map(Image.getmodebase, self._headers[0])) == {"L"} else 3)
        return (channels, *((side, side) if side else self._headers[1][0]))

    def find_options(self) -> tuple[dict[str, Any], str]:
        """Choose ``size``, ``channels`` and ``white`` if they are None, and a smaller batch size if images are too few.

        The size is the crop if that is given, and otherwise the one among 8, 16 and 32 pixels that is nearest to the
        shorter side of a typical image.

        Example:
            >>> import tempfile
            >>> folder = Path(tempfile.mkdtemp())
            >>> for i in range(20):
            ...     Image.new("L", (28, 28), i).save(folder / f"{i}.pgm")
            >>> data = ImageFolder(path=folder, root=tempfile.mkdtemp(), channels=None, test_size=0.1, val_size=0.1)
            >>> data.find_options()
            ({'size': 32, 'channels': 1, 'batch_size': 18}, '20 grey images of 28 x 28 pixels in ...')
        """
        found: dict[str, Any] = {}
        shapes = sorted(self._headers[1], key=math.prod)
        if self.size is None:
            typical = statistics.median(map(min, shapes))
            found["size"] = self.crop or min(SIDES, key=lambda side: abs(math.log2(side / typical)))
        if self.channels is None:
            found["channels"] = self.image_shape[0]
        if self.white is None and self._listing.peak >= 0:
            found["white"] = max(1, round(self._listing.peak))
        n_train, n_val, n_test = self._listing.counts
        labels = self._listing.labels
        if self.held_out_classes and labels is not None:
            parts = np.split(labels, np.cumsum([n_train, n_val]))
            kept = without_classes(parts, parts, self.held_out_classes, self._listing.class_names)
            n_train, n_val = map(len, kept[:2])
        n_train += n_val if self.train_on_val else 0
        if n_train < self.batch_size:
            found["batch_size"] = n_train
        smallest, largest = (f"{height} x {width}" for height, width in (shapes[0], shapes[-1]))
        sizes = smallest if smallest == largest else f"{smallest} to {largest}"
        kind = CHANNELS[self.image_shape[0]]
        changes = "; ".join(f"data.{key}={value}" for key, value in found.items())
        return found, (
            f"{len(self._listing.files)} {kind} images of {sizes} pixels in {self._name}, {n_train} for training, "
            f"{n_val} for validation and {n_test} for testing: {changes}."
        )

    def read(self) -> Images:
        """List the files of the folder, and decode the images unless this was done before."""
        listing = self._listing
        files = listing.files
        self.class_names = listing.class_names
        for note in listing.notes:
            log.info("%s", note)
        shape = self.image_shape
        # Earlier versions stored the index of each image's page in its file in this key, which is 0 for files of one
        # page. The zeros keep the key, so that images which these versions have decoded are not decoded again.
        key = fingerprint(VERSION, stamps_of(files), [0] * len(files), shape, self.crop, self._white)
        target = self._prepared / f"{Path(self._name).name[:50]}_{'x'.join(map(str, shape))}_{key}.npy"
        images = decode_once(target, lambda: files, self._decode, shape, len(files))
        (n_train, n_val, n_test) = listing.counts
        sizes = [n_train + n_val, n_test]
        labels = () if listing.labels is None else torch.from_numpy(listing.labels).split(sizes)
        return Images(*images.split(sizes), *labels, n_val=n_val)

    def example_digests(self) -> Splits:
        """Return a digest of the content of each image, in the order of the splits."""
        first = sum(self._listing.counts[:2])
        digests = as_integers(self._listing.digests)
        return self._split(digests[:first], digests[first:])

    @property
    def _prepared(self) -> Path:
        return Path(self.root) / "prepared"

    @property
    def _white(self) -> float | None:
        return self.white or (max(1.0, self._listing.peak) if self._listing.peak >= 0 else None)

    def _decode(self, path: Path) -> np.ndarray:
        mode = "L" if self.image_shape[0] == 1 else "RGB"
        side = self.size or self.crop
        crop = self.crop or (0 if side else None)
        pixels = decode_image(path, mode=mode, crop=crop, side=side, white=self._white)
        if pixels.shape != self.image_shape:
            raise DataError(
                f"{path} has the shape {pixels.shape}, and others {self.image_shape}: set data.size for one size."
            )
        return pixels

    @functools.cached_property
    def _headers(self) -> tuple[list[str], list[tuple[int, int]]]:
        """Read the mode and (height, width) of at most ``N_MEASURED`` images, evenly spaced in the list sorted by path.

        Damaged files are skipped here; decoding raises an error that names all of them.
        """
        modes = []
        shapes = []
        files = sorted(self._listing.files)
        for path in files[:: -(-len(files) // N_MEASURED)]:
            with suppress(DamagedImagesError), open_image(path) as image:
                modes.append(image.mode)
                shapes.append(size_of(image)[::-1])
        if not shapes:
            raise DamagedImagesError(files)
        return modes, shapes

    @functools.cached_property
    def _listing(self) -> Listing:
        return list_folders(
            cast("Path | None", self.path),
            {name: getattr(self, name) for name in NAMES},
            cache=self._prepared,
            sizes={"val": self.val_size, "test": self.test_size},
            seed=self.split_seed,
        )
