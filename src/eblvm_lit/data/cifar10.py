"""CIFAR10: colour photographs of 32 x 32 pixels in ten classes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch

from eblvm_lit.data.array_pickles import PickledArray, read_pickle
from eblvm_lit.data.images import Images, SmallImageDataModule, resample
from eblvm_lit.data.prepared_files import fetch
from eblvm_lit.errors import DataError
from eblvm_lit.utils.foreign_files import read_bounded

__all__ = ["CIFAR10"]

FOLDER = "cifar-10-batches-py"
TRAIN_FILES = tuple(f"data_batch_{i}" for i in range(1, 6))
TEST_FILE = "test_batch"
SHAPE = (3, 32, 32)
LARGEST = 160 << 20  # bytes of a file; the training images of CIFAR100 have 155 MB


class CIFAR10(SmallImageDataModule):
    """Small photographs, (3, 32, 32), of ten classes of objects.

    50,000 training images, of which the last 10,000 also serve as validation images, and 10,000 test images. The files
    are those of torchvision's ``CIFAR10`` (``root/cifar-10-batches-py``); missing ones are downloaded.

    Reference: Bao et al. 2020 (BiSM), appendix: all 50,000, in [0, 1], no flips; data by A. Krizhevsky.

    Args:
        root: Folder with ``cifar-10-batches-py``; missing files are downloaded to it.
        size, value_range, flip, val_size, train_on_val, flatten, batch_size, eval_batch_size, seed: As in the base
            classes.

    Raises:
        DataError: At loading, if a file is missing or damaged.

    Example:
        >>> CIFAR10(root="nowhere").event_shape, CIFAR10.class_names[6]
        ((3, 32, 32), 'frog')
    """

    class_names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

    def read(self) -> Images:
        """Read the six files."""
        names = [f"{FOLDER}/{name}" for name in (*TRAIN_FILES, TEST_FILE)]
        fetch(self.root, names, "CIFAR10")
        *train, test = (read_batch(self.root / name) for name in names)
        pixels, labels = (np.concatenate(parts) for parts in zip(*train, strict=True))
        images = (resample(torch.from_numpy(x), padding=0, size=self.size) for x in (pixels, test[0]))
        return Images(*images, torch.from_numpy(labels), torch.from_numpy(test[1]))


def read_batch(
    path: Path, labels_key: str = "labels", name: str = "CIFAR10", n_classes: int = 10
) -> tuple[np.ndarray, np.ndarray]:
    """Read one of the files of CIFAR10 or CIFAR100; it is not unpickled, since a pickle can do anything.

    Args:
        path: A pickled dictionary of ``data``, uint8 (n, 3072), and of n integers.
        labels_key: The key of these labels.
        name: The data set, for the error.
        n_classes: The labels are below this number.

    Returns:
        Images, uint8 (n, 3, 32, 32), and labels, int64 (n,).

    Raises:
        DataError: The file is damaged or has other contents.
    """
    cure = "delete it, and it is downloaded again, or put a whole one there."
    content = read_bounded(path, cure, LARGEST)
    try:
        found = read_pickle(content)
        labels, pixels = found[labels_key], found["data"]
        if type(pixels) is not PickledArray or type(labels) is not list:
            raise ValueError("it is no dictionary of an array and a list")
        if not labels or any(type(label) is not int or not 0 <= label < n_classes for label in labels):
            raise ValueError(f"its labels are no numbers below {n_classes}")
        pixels = pixels.uint8(len(labels), math.prod(SHAPE))
        return pixels.reshape(-1, *SHAPE), np.array(labels, np.int64)
    except Exception as error:  # a damaged pickle raises any exception
        raise DataError(f"{path} is damaged or no file of {name}: {cure}") from error
