"""CIFAR100: colour photographs of 32 x 32 pixels in a hundred classes."""

from __future__ import annotations

import torch

from eblvm_lit.data.cifar10 import read_batch
from eblvm_lit.data.images import Images, SmallImageDataModule, resample
from eblvm_lit.data.prepared_files import fetch

__all__ = ["CIFAR100"]

FOLDER = "cifar-100-python"


class CIFAR100(SmallImageDataModule):
    """Small photographs, (3, 32, 32), of a hundred classes of objects, none of which is a class of CIFAR10.

    50,000 training images, of which the last 10,000 also serve as validation images, and 10,000 test images. The files
    are those of torchvision's ``CIFAR100`` (``root/cifar-100-python``); missing ones are downloaded.

    Reference: Krizhevsky 2009, "Learning multiple layers of features from tiny images".

    Args:
        root: Folder with ``cifar-100-python``; missing files are downloaded to it.
        size, value_range, flip, val_size, train_on_val, flatten, batch_size, eval_batch_size, seed: As in the base
            classes.

    Raises:
        DataError: At loading, if a file is missing or damaged.

    Example:
        >>> CIFAR100(root="nowhere").event_shape
        (3, 32, 32)
    """

    def read(self) -> Images:
        """Read the two files."""
        names = [f"{FOLDER}/{name}" for name in ("train", "test")]
        fetch(self.root, names, "CIFAR100")
        train, test = (read_batch(self.root / name, "fine_labels", "CIFAR100", 100) for name in names)
        images = (resample(torch.from_numpy(x), padding=0, size=self.size) for x in (train[0], test[0]))
        return Images(*images, torch.from_numpy(train[1]), torch.from_numpy(test[1]))
