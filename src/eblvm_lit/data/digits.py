"""Handwritten digits of 8 x 8 pixels from scikit-learn: real data that need no download."""

from __future__ import annotations

from typing import cast

import numpy as np
import torch

from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.data.base import ArrayDataModule, Splits

__all__ = ["Digits"]

SIZES = (1400, 200, 197)
MAX_VALUE = 16


class Digits(ArrayDataModule):
    """scikit-learn's digits as flat vectors, in one fixed shuffled split.

        v = x / 16 in [0, 1]^64

    Reference: ``sklearn.datasets.load_digits`` (the test set of UCI's "Optical Recognition of Handwritten
    Digits"). Splits are of shape (1400, 64), (200, 64) and (197, 64), float32; the split does not depend on a seed. The
    labels are the digits.

    Example:
        >>> data = Digits()
        >>> data.setup()
        >>> [tuple(split.shape) for split in data.splits], data.splits.train.max().item()
        ([(1400, 64), (200, 64), (197, 64)], 1.0)
    """

    event_shape = (64,)
    image_shape = (1, 8, 8)

    def load(self) -> Splits:
        """Read the digits from scikit-learn's files and split them."""
        return split(torch.from_numpy(read_digits()[0]).float() / MAX_VALUE)

    def load_labels(self) -> Splits:
        """The digits, in {0..9}."""
        return split(torch.from_numpy(read_digits()[1]).long())


def read_digits() -> tuple[np.ndarray, np.ndarray]:
    """Pixels (1797, 64) in {0..16} and labels (1797,) in the order of the file."""
    from sklearn.datasets import load_digits  # a slow import

    return cast("tuple[np.ndarray, np.ndarray]", load_digits(return_X_y=True))


def split(rows: torch.Tensor) -> Splits:
    """Shuffle the rows of the file and split them into training, validation and test rows."""
    # The file is ordered by writer: without shuffling, the splits would have different distributions.
    order = torch.randperm(len(rows), generator=keyed_generator(0, "digits", "split"))
    return Splits(*rows[order].split(SIZES))
