"""SVHN: colour photographs of house numbers, 32 x 32 pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from eblvm_lit.data.images import Images, SmallImageDataModule, resample
from eblvm_lit.data.matlab_files import Expected, read_matlab
from eblvm_lit.data.prepared_files import fetch
from eblvm_lit.errors import DataError

__all__ = ["SVHN"]

NAMES = ("train_32x32.mat", "test_32x32.mat")


class SVHN(SmallImageDataModule):
    """House numbers, (3, 32, 32); the label is the digit in the middle.

    73,257 training images, of which the last 10,000 also serve as validation images, and 26,032 test images; the
    531,131 easier extra images are not used. The files are those of torchvision's ``SVHN``; missing files are
    downloaded.

    Reference: Netzer et al. 2011, "Reading digits in natural images with unsupervised feature learning".

    Args:
        root: Folder with ``train_32x32.mat`` and ``test_32x32.mat``; missing files are downloaded to it.
        size, value_range, flip, val_size, train_on_val, flatten, batch_size, eval_batch_size, seed: As in the base
            classes.

    Raises:
        DataError: At loading, if a file is missing or damaged.

    Example:
        >>> SVHN(root="nowhere").event_shape
        (3, 32, 32)
    """

    class_names = tuple("0123456789")

    def read(self) -> Images:
        """Read the two files."""
        fetch(self.root, NAMES, "SVHN", splits=("train", "test"))
        (train, train_labels), (test, test_labels) = (read_numbers(self.root / name) for name in NAMES)
        images = (resample(torch.from_numpy(x), padding=0, size=self.size) for x in (train, test))
        return Images(*images, torch.from_numpy(train_labels), torch.from_numpy(test_labels))


def read_numbers(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read one file of SVHN.

    Args:
        path: A MATLAB file of ``X``, uint8 (32, 32, 3, n), and ``y``, n labels in {1..10}, where 10 stands for 0.

    Returns:
        Images, uint8 (n, 3, 32, 32), and labels, int64 (n,), in {0..9}.

    Raises:
        DataError: The file is damaged or has other contents.
    """
    what, cure = "file of SVHN", "delete it, and it is downloaded again, or put a whole one there."
    content = read_matlab(path, {"X": Expected((32, 32, 3, -1)), "y": Expected((-1, 1), None)}, what, cure)
    pixels, labels = content["X"], content["y"].reshape(-1)
    if pixels.shape[3] != len(labels) or not np.isin(labels, range(1, 11)).all():
        raise DataError(f"{path} is damaged or no {what}, whose images have one label of 1 to 10 each: {cure}")
    return np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)), labels.astype(np.int64) % 10
