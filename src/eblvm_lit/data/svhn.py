"""SVHN: colour photographs of house numbers, 32 x 32 pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from scipy.io import loadmat

from eblvm_lit.data.images import Images, SmallImageDataModule, resample
from eblvm_lit.data.prepared_files import fetch
from eblvm_lit.errors import DataError

__all__ = ["SVHN"]

NAMES = ("train_32x32.mat", "test_32x32.mat")


class SVHN(SmallImageDataModule):
    """House numbers, (3, 32, 32); the label is the digit in the middle.

    73,257 training images, the last 10,000 of which are the validation images too, and 26,032 test images; the 531,131
    easier extra ones are left out. Files are those of torchvision's ``SVHN``, downloaded where they are missing.

    Reference: Netzer et al. 2011, "Reading digits in natural images with unsupervised feature learning".

    Args:
        root: Folder that has, or is given, ``train_32x32.mat`` and ``test_32x32.mat``.
        size, value_range, flip, val_size, train_on_val, batch_size, eval_batch_size, seed: As in the base classes.

    Raises:
        DataError: At loading, where a file is missing or damaged.

    Example:
        >>> SVHN(root="nowhere").event_shape
        (3, 32, 32)
    """

    class_names = tuple("0123456789")

    def read(self) -> Images:
        """Read the two files."""
        fetch(self.root, NAMES, download, "torchvision.datasets.SVHN")
        (train, train_labels), (test, test_labels) = (read_numbers(self.root / name) for name in NAMES)
        images = (resample(torch.from_numpy(x), padding=0, size=self.size) for x in (train, test))
        return Images(*images, torch.from_numpy(train_labels), torch.from_numpy(test_labels))


def download(folder: Path) -> None:
    """Let torchvision get the files."""
    from torchvision import datasets  # takes a second: paid by those who use it

    for split in ("train", "test"):
        datasets.SVHN(folder, split=split, download=True)


def read_numbers(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read one of SVHN's files.

    Args:
        path: A MATLAB file of ``X``, uint8 (32, 32, 3, n), and ``y``, n labels in {1..10}, of which 10 means 0.

    Returns:
        Images, uint8 (n, 3, 32, 32), and labels, int64 (n,), in {0..9}.

    Raises:
        DataError: It is damaged or has other contents.
    """
    try:
        content = loadmat(path)
        pixels, labels = content["X"], content["y"].reshape(-1).astype(np.int64) % 10
        if pixels.dtype != np.uint8 or pixels.shape != (32, 32, 3, len(labels)):
            raise ValueError(f"{pixels.dtype} {pixels.shape} with labels {labels.shape}")
    except Exception as error:  # loadmat's failures on damaged files have no base class of their own
        raise DataError(
            f"{path} is damaged or no file of SVHN: delete it, and it is downloaded again, or put a whole one there."
        ) from error
    return np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)), labels
