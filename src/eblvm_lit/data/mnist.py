"""MNIST and Fashion-MNIST: grey images of 28 x 28 pixels in ten classes, padded to 32 x 32."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import torch

from eblvm_lit.data.images import Images, SmallImageDataModule, resample
from eblvm_lit.data.prepared_files import fetch
from eblvm_lit.errors import DataError
from eblvm_lit.utils.foreign_files import LARGEST, check_regular

__all__ = ["MNIST", "FashionMNIST", "read_idx"]

PADDING = 2
SIDE = 28
UNSIGNED_BYTES = 8


class MNIST(SmallImageDataModule):
    """Handwritten digits, zero-padded by 2 to (1, 32, 32); the labels are the digits.

    60,000 training images, of which the last 10,000 also serve as validation images, and 10,000 test images. The files
    are those of torchvision's ``MNIST`` (``root/MNIST/raw/*-ubyte``, with or without ``.gz``); missing ones are
    downloaded.

    Reference: Bao et al. 2020 (BiSM), appendix; data by Y. LeCun, C. Cortes and C. Burges.

    Args:
        root: Folder with ``MNIST/raw``; missing files are downloaded to it.
        size, value_range, flip, val_size, train_on_val, flatten, batch_size, eval_batch_size, seed: As in the base
            classes.

    Raises:
        DataError: At loading, if a file is missing or damaged.

    Example:
        >>> MNIST(root="nowhere").event_shape, MNIST(root="nowhere", size=16).event_shape
        ((1, 32, 32), (1, 16, 16))
    """

    channels = 1
    folder = "MNIST"
    class_names: tuple[str, ...] = tuple("0123456789")

    def read(self) -> Images:
        """Read the four files."""
        paths = self._paths()
        arrays = [torch.from_numpy(read_idx(path, n_dims)) for path, n_dims in zip(paths, (3, 1, 3, 1), strict=True)]
        for path, array in zip(paths[::2], arrays[::2], strict=True):
            if array.shape[1:] != (SIDE, SIDE):
                raise DataError(f"{path} holds images of {tuple(array.shape[1:])} pixels instead of (28, 28).")
        for path, array in zip(paths[1::2], arrays[1::2], strict=True):
            if array.max() >= len(self.class_names):
                raise DataError(f"{path} holds the label {array.max()}, and there are {len(self.class_names)} classes.")
        train, train_labels, test, test_labels = arrays
        images = (resample(x[:, None], padding=PADDING, size=self.size) for x in (train, test))
        return Images(*images, train_labels.long(), test_labels.long())

    def _paths(self) -> list[Path]:
        raw = Path(self.folder) / "raw"
        stems = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
        names = [str(raw / (stem if (self.root / raw / stem).is_file() else f"{stem}.gz")) for stem in stems]
        fetch(self.root, names, self.folder)
        return [self.root / name for name in names]


class FashionMNIST(MNIST):
    """Pictures of clothes in the format of MNIST, zero-padded by 2 to (1, 32, 32); labels are kinds of clothes.

    60,000 training images, of which the last 10,000 also serve as validation images, and 10,000 test images. The files
    are those of torchvision's ``FashionMNIST`` (``root/FashionMNIST/raw``).

    Reference: Xiao, Rasul and Vollgraf 2017, "Fashion-MNIST".

    Example:
        >>> FashionMNIST(root="nowhere").class_names[9]
        'ankle boot'
    """

    folder = "FashionMNIST"
    class_names = (
        *("T-shirt/top", "trouser", "pullover", "dress", "coat"),
        *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
    )


def read_idx(path: Path, n_dims: int) -> np.ndarray:
    """Read an IDX file of bytes, optionally compressed by gzip.

    The content is checked instead of a checksum, so that a recompressed copy is accepted, too.

    Args:
        path: The file; its name ends in ``.gz`` if it is compressed.
        n_dims: The required number of dimensions.

    Returns:
        uint8 array of the shape in the file.

    Raises:
        DataError: The file is damaged, truncated or has other contents.
    """
    cure = "delete it, and it is downloaded again, or put a whole one there."
    check_regular(path, cure)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            zeros, kind, found, *shape = struct.unpack(f">HBB{n_dims}I", file.read(4 + 4 * n_dims))
            if (zeros, kind, found) != (0, UNSIGNED_BYTES, n_dims):
                raise DataError(f"{path} is no IDX file of bytes in {n_dims} dimensions: {cure}")
            n = math.prod(shape)
            if not 0 < n <= LARGEST:
                raise DataError(f"{path} is damaged: it announces {n:,} values; {cure}")
            values = np.frombuffer(file.read(n + 1), np.uint8)  # one more, to see whether it ends there
    except (OSError, EOFError, zlib.error, struct.error) as error:
        raise DataError(f"{path} is damaged or cut off: {cure}") from error
    if len(values) != n:
        has = "more" if len(values) > n else len(values)
        raise DataError(f"{path} is damaged: it has {has} values and announces {n}; {cure}")
    return values.reshape(shape).copy()  # torch needs writable memory
