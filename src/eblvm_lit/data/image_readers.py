"""Images that any program has made, read from a folder, a file or an array and compared with a data set's format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eblvm_lit.data.arrangement import CHANNELS, channels_first, pixels_of
from eblvm_lit.data.base import ArrayDataModule, image_shape_of
from eblvm_lit.data.folders.listing import list_images
from eblvm_lit.data.given import examples_in
from eblvm_lit.data.images import ValueRange, resample
from eblvm_lit.data.prepared_files import decode_image
from eblvm_lit.data.readers import read
from eblvm_lit.data.tables import Names
from eblvm_lit.errors import ConfigError, DataError
from eblvm_lit.utils.progress import progress_bar

__all__ = ["given_images"]

LOWEST = {"unit": 0.0, "symmetric": -1.0}


def given_images(
    given: Any, data: ArrayDataModule, *, key: str | None = None, value_range: ValueRange | None = None
) -> Tensor:
    """Read images in any of the usual forms, and convert them to the form of a data set's images.

    Grey images may be stored as colour images with equal channels. Images of the size that the data set's files have,
    such as 28 x 28 pixels for MNIST, are padded and resampled as the data set's own.

    Args:
        given: A folder of image files, an array file of :func:`~eblvm_lit.data.readers.read` (.npz, .npy, .pt, ...), or
            an array or tensor, with images (n, H, W), (n, C, H, W) or (n, H, W, C), or vectors of C H W values.
        data: The data set.
        key: The name of the array in a file with several.
        value_range: The range of floats: ``unit`` for [0, 1] or ``symmetric`` for [-1, 1]; values outside are clamped.
            None finds the range, and also accepts whole numbers up to 255: see
            :func:`~eblvm_lit.data.arrangement.pixels_of`.

    Returns:
        The images, uint8, shape (n, C, H, W), in the order of the array or of the files' names.

    Raises:
        ConfigError: If there is no such range of floats.
        DataError: If there are no such images, or their number format, channels or size do not fit the data set.

    Example:
        >>> from eblvm_lit.data.digits import Digits
        >>> given_images(np.full((5, 8, 8, 1), 0.5), Digits(), value_range="unit").unique()
        tensor([128], dtype=torch.uint8)
        >>> given_images(np.zeros((5, 28, 28)), Digits())
        Traceback (most recent call last):
        ...
        eblvm_lit.errors.DataError: images: grey images of 28 x 28 pixels, and Digits has grey images ...
    """
    if value_range not in (None, *LOWEST):
        raise ConfigError(f"The range of images is {' or '.join(LOWEST)}, not {value_range}.")
    shape = image_shape_of(data)
    where = "images"
    if isinstance(given, str | Path):
        where = str(given)
        path = Path(given).expanduser()
        if not path.exists():
            raise DataError(f"There is no file or folder {path}.")
        values = _decoded(path) if path.is_dir() else _array(path, key)
    else:
        values = examples_in(given, where).values
    if values.ndim == 2 and values.shape[1] == np.prod(shape):
        values = values.reshape(-1, *shape)
    values = channels_first(values, where)
    if values.ndim != 4:
        raise DataError(f"{where} holds vectors of {values.shape[1]} values, which are not {_words(shape)}.")
    if value_range is not None and values.dtype.kind == "f":
        low = LOWEST[value_range]
        values = (values.astype(np.float64) - low).clip(0, 1 - low) / (1 - low)
    try:
        pixels = pixels_of([values], where)[0]
    except DataError as error:
        if values.dtype.kind != "f":
            raise
        raise DataError(
            f"{error} Samples of a model: images.range=unit or images.range=symmetric clamps to [0, 1] or [-1, 1]."
        ) from None
    images = torch.from_numpy(pixels if pixels.dtype == np.uint8 else np.rint(pixels * 255).astype(np.uint8))
    if shape[0] == 1 and images.shape[1] == 3 and bool((images == images[:, :1]).all()):
        images = images[:, :1]
    padding = getattr(data, "padding", 0)
    if padding and images.shape[1:] == (shape[0], *[32 - 2 * padding] * 2):
        images = resample(images, padding=padding, size=shape[1])
    if images.shape[1:] != shape:
        raise DataError(
            f"{where}: {_words(images.shape[1:])}, and {type(data).__name__} has {_words(shape)}: convert them first."
        )
    return images


def _array(path: Path, key: str | None) -> np.ndarray:
    """Read the array of an array file; refuse a file that has one array for each split, unless ``key`` is one array."""
    table = read(path, Names(key))
    if table.split is not None:
        raise DataError(f"{path} has an array for each split: set images.key to the full name of one, such as x_test.")
    return table.values


def _words(shape: tuple[int, ...]) -> str:
    return f"{CHANNELS[shape[0]]} images of {shape[1]} x {shape[2]} pixels"


def _decoded(folder: Path) -> np.ndarray:
    """Decode all image files below a folder as colour images, uint8, shape (n, 3, H, W)."""
    files = list_images(folder).files
    found: list[np.ndarray] = []
    with progress_bar("images", len(files)) as on_step:
        for path in files:
            found.append(decode_image(path, crop=None, side=None))
            on_step(1)
            if found[-1].shape != found[0].shape:
                raise DataError(f"{path} and {files[0]} differ in their size: resize the images to one size.")
    return np.stack(found)
