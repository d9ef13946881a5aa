"""CIFAR10: colour photographs of 32 x 32 pixels in ten classes."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from eblvm_lit.data.images import Images, SmallImageDataModule, resample
from eblvm_lit.data.prepared_files import fetch
from eblvm_lit.errors import DataError

__all__ = ["CIFAR10"]

FOLDER = "cifar-10-batches-py"
TRAIN_FILES = tuple(f"data_batch_{i}" for i in range(1, 6))
TEST_FILE = "test_batch"
SHAPE = (3, 32, 32)


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


class ArrayUnpickler(pickle.Unpickler):
    """An unpickler that builds arrays and nothing else: any other pickle could execute code."""

    reconstruct, *_ = np.zeros(0, np.uint8).__reduce__()
    allowed: ClassVar[dict[str, Any]] = {"_reconstruct": reconstruct, "ndarray": np.ndarray, "dtype": np.dtype}

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] == "numpy" and name in self.allowed:
            return self.allowed[name]
        if (module, name) == ("_codecs", "encode"):  # Python 3 writes bytes this way in Python 2's format
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is no part of an array.")


def read_batch(path: Path, labels_key: str = "labels", name: str = "CIFAR10") -> tuple[np.ndarray, np.ndarray]:
    """Read one of the files of CIFAR10 or CIFAR100.

    Args:
        path: A pickled dictionary of ``data``, uint8 (n, 3072), and of n integers.
        labels_key: The key of these labels.
        name: The data set, for the error.

    Returns:
        Images, uint8 (n, 3, 32, 32), and labels, int64 (n,).

    Raises:
        DataError: The file is damaged or has other contents.
    """
    try:
        with path.open("rb") as file:
            content = ArrayUnpickler(file, encoding="latin1").load()
        pixels, labels = np.asarray(content["data"]), np.asarray(content[labels_key], dtype=np.int64)
        if pixels.dtype != np.uint8 or labels.shape != (len(pixels),):
            raise ValueError(f"{pixels.dtype} {pixels.shape} with labels {labels.shape}")
        return pixels.reshape(-1, *SHAPE), labels
    except Exception as error:  # a damaged pickle raises any exception
        raise DataError(
            f"{path} is damaged or no file of {name}: delete it, and it is downloaded again, or put a whole one there."
        ) from error
