"""The handwritten digits of 8 x 8 pixels in scikit-learn: real data that need no download."""

# There is no "from __future__ import annotations" here, because it would turn annotations into strings. Subclasses in
# other modules inherit these dataclass fields. The check of a configuration evaluates their annotations in the module
# of the subclass, and some names in such strings may be unknown there.
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch

from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.data.base import Splits
from eblvm_lit.data.images import BinarizableData

__all__ = ["Digits"]

SIZES = (1400, 200, 197)
MAX_VALUE = 16


@dataclass(kw_only=True, eq=False)
class Digits(BinarizableData):
    """The digits of scikit-learn as flat vectors, with a fixed shuffle and fixed splits.

        v = x / 16 in [0, 1]^64

    Reference: ``sklearn.datasets.load_digits`` (the test set of UCI's "Optical Recognition of Handwritten
    Digits"). Splits are of shape (1400, 64), (200, 64) and (197, 64), float32; the split does not depend on a seed. The
    labels are the digits.

    Args:
        held_out_classes: The digits that training and validation leave out. They remain in the test split, as outliers.
        binarize: How grey values become bits; see :class:`~eblvm_lit.data.images.BinarizableData`.
        batch_size, eval_batch_size, seed: As in the base class.

    Example:
        >>> data = Digits()
        >>> data.setup()
        >>> [tuple(split.shape) for split in data.splits], data.splits.train.max().item()
        ([(1400, 64), (200, 64), (197, 64)], 1.0)
    """

    event_shape = (64,)
    image_shape = (1, 8, 8)

    held_out_classes: Sequence[int | str] = ()

    def load(self) -> Splits:
        """Read the digits from scikit-learn's files and split them."""
        grey = split("data")._asdict().items()
        return Splits(*(self.binarised(part.float() / MAX_VALUE, name) for name, part in grey))

    def load_labels(self) -> Splits:
        """Return the digits, in {0..9}, as labels."""
        return split("target")


@functools.cache
def split(key: str) -> Splits:
    """Shuffle and split an array of scikit-learn's data set: pixels (1797, 64) or labels (1797,).

    The result is cached, because scikit-learn parses its text file in 20 ms.
    """
    from sklearn.datasets import load_digits  # imported here, because the import is slow

    rows = torch.from_numpy(cast("dict[str, np.ndarray]", load_digits())[key])
    # The file is ordered by writer: without shuffling, the splits would have different distributions.
    order = torch.randperm(len(rows), generator=keyed_generator(0, "digits", "split"))
    return Splits(*rows[order].split(SIZES))
