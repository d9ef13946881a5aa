"""Conversion of a data set's rows to images of bytes or to points, and a fingerprint of their content."""

from __future__ import annotations

import torch
from torch import Tensor

from eblvm_lit.data.base import ArrayDataModule, image_shape_of
from eblvm_lit.utils.digest import digest

__all__ = ["as_images", "content_fingerprint"]

N_READ = 10_000


def as_images(data: ArrayDataModule, rows: Tensor) -> Tensor:
    """Rows of a split as images of bytes; of data that are no images, the rows as models see them.

    Args:
        data: Whose split it is.
        rows: uint8 or float32, shape (B, *event).

    Returns:
        uint8, shape (B, C, H, W); float32, shape (B, *event), for data without images.

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
    """Sixteen hexadecimal digits of the shape, the type and the values of an array.

    Of longer arrays at most 20,000 rows at equal distances are read: a small edit may go unnoticed.

    Example:
        >>> a = torch.zeros(5, 2)
        >>> content_fingerprint(a) == content_fingerprint(a + 1), content_fingerprint(a) == content_fingerprint(a[:4])
        (False, False)
    """
    return digest(len(rows), rows[:: max(1, len(rows) // N_READ)])
