"""Functions that tell vectors from images, move the channels of images first, and convert pixels and labels."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import pandas as pd

from eblvm_lit.errors import DataError

__all__ = ["CHANNELS", "channels_first", "labels_of", "pixels_of"]

log = logging.getLogger(__name__)

CHANNELS = {1: "grey", 3: "colour"}


def channels_first(values: np.ndarray, where: str) -> np.ndarray:
    """Convert images of shape (n, H, W) or (n, H, W, C) to shape (n, C, H, W); return vectors (n, d) unchanged.

    Raises:
        DataError: If the array has another number of axes, or neither 1 nor 3 channels.

    Example:
        >>> shapes = (5, 2), (5, 8, 9), (5, 8, 9, 3), (5, 3, 8, 9)
        >>> [channels_first(np.zeros(shape), "x.npy").shape for shape in shapes]
        [(5, 2), (5, 1, 8, 9), (5, 3, 8, 9), (5, 3, 8, 9)]
    """
    if values.ndim == 2:
        return values
    if values.ndim == 3:
        return values[:, None]
    if values.ndim == 4 and values.shape[1] in CHANNELS:
        return values
    if values.ndim == 4 and values.shape[3] in CHANNELS:
        return values.transpose(0, 3, 1, 2)
    raise DataError(
        f"{where} has the shape {values.shape}: vectors are (n, d), and images are (n, H, W), (n, C, H, W) or "
        "(n, H, W, C) with 1 or 3 channels C."
    )


def pixels_of(parts: Sequence[np.ndarray], where: str) -> list[np.ndarray]:
    """Convert images to bytes, or to floats in [0, 1] if they have more than 256 levels.

    Whole numbers in [0, 255] become bytes; if all of them are 0 or 1, they are black and white, and 1 becomes 255.
    Floats may be in [0, 1], in [-1, 1] if some are negative, or in [0, 255] if some are above 1; the range is chosen
    by the smallest and the largest value of all splits. Floats that are k / 255 become bytes, too.

    Args:
        parts: The images of each split, each (n, C, H, W).
        where: The file, for the message of the error.

    Raises:
        DataError: If the values are in another range, or if one split has bytes and another one floats.

    Example:
        >>> [part.tolist() for part in pixels_of([np.array([[[[0.0, 0.2]]]]), np.array([[[[1.0, 0.6]]]])], "x.npy")]
        [[[[[0, 51]]]], [[[[255, 153]]]]]
        >>> pixels_of([np.array([[[[-1.0, 0.25]]]])], "x.npy")[0].tolist()
        [[[[0.0, 0.625]]]]
    """
    if len({part.dtype.kind == "f" for part in parts}) > 1:
        types = " and ".join(sorted({str(part.dtype) for part in parts}))
        raise DataError(f"{where} has splits of {types}, whose pixels have different ranges: store them in one type.")
    low = min(float(part.min()) for part in parts)
    high = max(float(part.max()) for part in parts)
    whole = all(part.dtype.kind in "biu" for part in parts)
    if whole and low >= 0 and high <= 1:
        return [part.astype(np.uint8) * np.uint8(255) for part in parts]
    if all(part.dtype == np.uint8 for part in parts):
        return list(parts)
    if low >= 0 and high <= 1:
        scale = 1.0
        shift = 0.0
    elif -1 <= low < 0 and high <= 1:
        scale = 0.5
        shift = 0.5
    elif low >= 0 and 2 <= high <= 255:
        scale = 1 / 255
        shift = 0.0
    else:
        raise DataError(
            f"{where} has pixels from {low:g} to {high:g}: scale them to [0, 1], [-1, 1] or whole numbers up to 255."
        )
    scaled = [part.astype(np.float64) * scale + shift for part in parts]
    levels = [np.rint(part * 255) for part in scaled]
    if all(np.allclose(part * 255, level, rtol=0, atol=1e-3) for part, level in zip(scaled, levels, strict=True)):
        return [level.astype(np.uint8) for level in levels]
    return [part.astype(np.float32) for part in scaled]


def labels_of(parts: Sequence[np.ndarray | None], where: str) -> tuple[list[np.ndarray] | None, tuple[str, ...] | None]:
    """Convert labels to int64; text labels become indices into the sorted list of distinct labels.

    Args:
        parts: The labels of each split, each (n,) or (n, n_attributes); None for a split without labels.
        where: The file, for the message of the error.

    Returns:
        The labels of each split, None if a split has no labels; and the names of the labels, None if they are numbers.

    Raises:
        DataError: If labels are missing, have other shapes, or are numbers, but not whole numbers.

    Example:
        >>> labels_of([np.array(["b", "a"]), np.array(["a"])], "x.csv")
        ([array([1, 0]), array([0])], ('a', 'b'))
        >>> labels_of([np.array([0.5])], "x.csv")
        Traceback (most recent call last):
        ...
        eblvm_lit.errors.DataError: x.csv has the label 0.5: labels are whole numbers, or words.
    """
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        if found:
            log.warning("%s: the labels are ignored, because one split has none.", where)
        return None, None
    for part in found:
        if (missing := np.flatnonzero(pd.isna(part.reshape(len(part), -1)).any(1))).size:
            raise DataError(f"{where}: row {missing[0]} has no label: fill it in or leave the row out.")
    if len({part.shape[1:] for part in found}) > 1:
        raise DataError(f"{where} has labels of several shapes: give each example of each split one label, or one row.")
    if any(part.dtype.kind not in "buif" for part in found):
        words = [part.astype(str) for part in found]
        names, indices = np.unique(np.concatenate(words), return_inverse=True)
        ends = np.cumsum([len(part) for part in found])[:-1]
        return [part.astype(np.int64) for part in np.split(indices, ends)], tuple(map(str, names))
    for part in found:
        if (odd := part[part != np.floor(part)]).size:
            raise DataError(f"{where} has the label {odd[0]}: labels are whole numbers, or words.")
    return [part.astype(np.int64) for part in found], None
