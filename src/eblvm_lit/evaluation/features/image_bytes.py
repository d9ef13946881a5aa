"""The conversion of a data set's examples to uint8 images or to points, and a fingerprint of their content."""

from __future__ import annotations

import torch
from torch import Tensor

from eblvm_lit.data.base import ArrayDataModule, image_shape_of
from eblvm_lit.utils.digest import digest

__all__ = ["as_images", "content_fingerprint"]

N_READ = 10_000


def as_images(data: ArrayDataModule, rows: Tensor) -> Tensor:
    """Convert examples to uint8 images or, if the data are not images, to the floats that models take as input.

    Args:
        data: The data module of the examples.
        rows: B examples, as stored in a split or as floats: uint8 or float32, shape (B, *event).

    Returns:
        Images, uint8, shape (B, C, H, W); if the data are not images, floats, float32, shape (B, *event).

    Example:
        >>> from eblvm_lit.data.digits import Digits
        >>> x = as_images(Digits(), torch.full((2, 64), 0.5))
        >>> x.shape, x.unique()
        (torch.Size([2, 1, 8, 8]), tensor([128], dtype=torch.uint8))
    """
    if data.image_shape is None:
        return data.as_float(rows)
    return (rows if rows.dtype == torch.uint8 else data.as_bytes(rows)).reshape(-1, *image_shape_of(data))


def content_fingerprint(rows: Tensor) -> str:
    """Compute a digest of an array's shape, dtype and values: sixteen hexadecimal digits.

    It reads at most 20,000 evenly spaced rows of a long array, so that it may miss a small change.

    Example:
        >>> a = torch.zeros(5, 2)
        >>> content_fingerprint(a) == content_fingerprint(a + 1), content_fingerprint(a) == content_fingerprint(a[:4])
        (False, False)
    """
    return digest(len(rows), rows[:: max(1, len(rows) // N_READ)])
