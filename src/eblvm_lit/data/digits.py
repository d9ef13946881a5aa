"""Handwritten digits of 8 x 8 pixels: real data that come with scikit-learn."""

from __future__ import annotations

import torch

from eblvm_lit.data.base import ArrayDataModule, Splits
from eblvm_lit.seeding import keyed_generator

__all__ = ["Digits"]

SIZES = (1400, 200, 197)
MAX_VALUE = 16


class Digits(ArrayDataModule):
    """scikit-learn's digits as flat vectors, in one fixed shuffled split.

        v = x / 16 in [0, 1]^64

    Reference: ``sklearn.datasets.load_digits`` (the test set of UCI's "Optical Recognition of Handwritten
    Digits"). Splits are of shape (1400, 64), (200, 64) and (197, 64), float32; the split depends on no seed.

    Example:
        >>> data = Digits()
        >>> data.setup()
        >>> [tuple(split.shape) for split in data.splits], data.splits.train.max().item()
        ([(1400, 64), (200, 64), (197, 64)], 1.0)
    """

    event_shape = (64,)
    image_shape = (1, 8, 8)

    def load(self) -> Splits:
        """Read the digits from scikit-learn's own files and split them."""
        from sklearn.datasets import load_digits  # takes a second: paid by those who use it

        v = torch.from_numpy(load_digits().data).float() / MAX_VALUE
        # The file goes writer by writer, so that splits in its order would differ in law.
        order = torch.randperm(len(v), generator=keyed_generator(0, "digits", "split"))
        return Splits(*v[order].split(SIZES))
