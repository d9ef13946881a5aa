"""Images with more than 8 bits per value: functions that read their values and convert them to 8 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
from PIL import Image

from eblvm_lit.errors import DataError

__all__ = ["MAX_VALUE", "deep_values", "in_eight_bits", "peak_of"]

MAX_VALUE = 65535  # the largest 16-bit value
BITS_PER_SAMPLE = 258  # the TIFF tag with the number of bits per value
INTEGERS = ("PNG", "PPM")  # formats with at most 16 bits per value, which Pillow may read as 32-bit integers


def deep_values(path: Path, image: Image.Image) -> np.ndarray | None:
    """Return the values of an image with 16 or 32 bits per value; None for an image with at most 8.

    Pillow keeps only the upper 8 of 16 bits of colour images, so torchvision reads those in PNG files.

    Args:
        path: The file of the image.
        image: The open image.

    Returns:
        Shape (height, width), or (height, width, channels); integers of 16 bits, or numbers of 32 bits.

    Raises:
        DataError: For a 16-bit colour TIFF file, of which Pillow would read only 8 bits.
    """
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        return np.asarray(image)
    if image.format == "TIFF" and max(cast(Any, image).tag_v2.get(BITS_PER_SAMPLE, (8,))) > 8:
        raise DataError(f"{path} has colours of 16 bits, of which 8 would be read: save it as PNG, or in 8 bits.")
    if image.format == "PNG" and _depth_of_png(path) == 16:
        from torchvision.io import ImageReadMode, decode_png, read_file  # imported here, because the import is slow

        return decode_png(read_file(str(path)), ImageReadMode.UNCHANGED).permute(1, 2, 0).numpy()
    return None


def _depth_of_png(path: Path) -> int:
    """Return the bit depth of a PNG file, which is the 25th byte of its header."""
    with path.open("rb") as file:
        return file.read(25)[24]


def peak_of(path: Path, image: Image.Image) -> float:
    """Return the largest value of a 16-bit image, except its alpha channel; -1 for 8-bit and 32-bit images.

    Example:
        >>> image = Image.fromarray(np.array([[0, 4000]], dtype=np.uint16))
        >>> peak_of(Path("a.tif"), image), peak_of(Path("a.png"), Image.new("L", (2, 2)))
        (4000.0, -1.0)
    """
    values = deep_values(path, image)
    if values is None or _has_32_bits(image):
        return -1.0
    n_colours = {2: 1, 4: 3}.get(values.shape[-1]) if values.ndim == 3 else None
    return float(values[..., :n_colours].max() if n_colours else values.max())


def _has_32_bits(image: Image.Image) -> bool:
    return image.mode in ("I", "F") and image.format not in INTEGERS


def in_eight_bits(path: Path, image: Image.Image, white: float | None) -> Image.Image:
    """Convert an image to 8 bits per value: each value x becomes round(255 min(x, white) / white).

    Args:
        path: The file of the image.
        image: The open image; one of at most 8 bits is returned unchanged.
        white: The value that becomes 255; None for the largest value of 16 bits.

    Raises:
        DataError: If the values have 32 bits, whose range is unknown, and ``white`` is not given.

    Example:
        >>> image = Image.fromarray(np.array([[0, 2048, 4096, 8000]], dtype=np.uint16))
        >>> np.asarray(in_eight_bits(Path("a.tif"), image, 4096)).tolist()
        [[0, 128, 255, 255]]
    """
    values = deep_values(path, image)
    if values is None:
        return image
    if white is None and _has_32_bits(image):
        raise DataError(f"{path} has numbers of 32 bits, whose scale is unknown: set data.white, or convert it.")
    scaled = np.rint(np.clip(values / (white or MAX_VALUE), 0, 1) * 255).astype(np.uint8)
    converted = Image.fromarray(scaled)
    converted.getexif().update(image.getexif())  # keep the EXIF data, which contain the image's orientation
    return converted
