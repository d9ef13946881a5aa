"""The decoding of image files into one memory-mapped array of bytes, which is done only once."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps
from rich.markup import escape
from rich.progress import track

from eblvm_lit.data.image_depth import in_eight_bits
from eblvm_lit.errors import DataError
from eblvm_lit.utils.io import read_cached, write_whole

__all__ = ["DamagedImagesError", "decode_image", "decode_once", "fingerprint", "open_image", "size_of"]

Source = TypeVar("Source")

# The formats that Pillow may read. EPS is excluded, because Pillow would start Ghostscript to read it.
FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TGA", "TIFF", "WEBP")


class DamagedImagesError(DataError):
    """The error for files that are missing, damaged or not images; its message names all of these files.

    Example:
        >>> print(DamagedImagesError([Path("a.png"), Path("b.png")]))
        These files are missing, damaged or no images: mend them or take them out of the folder: a.png, b.png.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = list(paths)
        super().__init__(
            "These files are missing, damaged or no images: mend them or take them out of the folder: "
            f"{', '.join(map(str, paths))}."
        )


def fingerprint(*parts: object) -> str:
    """Compute a digest of twelve hexadecimal digits, which identifies a list of values.

    Example:
        >>> fingerprint("a.jpg", 32) == fingerprint("a.jpg", 64)
        False
    """
    return hashlib.blake2b(repr(parts).encode(), digest_size=6).hexdigest()


def decode_once(
    target: Path,
    files: Callable[[], Sequence[Source]],
    decode: Callable[[Source], np.ndarray],
    shape: tuple[int, int, int],
    n: int | None = None,
) -> torch.Tensor:
    """Decode image files into one array on disk at the first call; return the memory-mapped array.

    The array's file is created only when it is complete, so that an interrupted call never leaves a partial file. If
    the file is found to be damaged, the images are decoded again.

    Args:
        target: The ``.npy`` file of the array; its name must identify its content.
        files: A function that lists the image files, in any form, in the order of the array; called only if they must
            be decoded.
        decode: A function that returns the pixels of a file, uint8, of the given shape; called from several threads.
        shape: The shape (C, H, W) of an image.
        n: The number of images, which serves to recognise a damaged array; None if only ``files`` knows it.

    Returns:
        The array, uint8, shape (n, C, H, W); changes to it are not written to the file.

    Raises:
        DamagedImagesError: With all images that cannot be decoded.
        DataError: If an image does not fit, or the array cannot be written.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp(), "set.npy")
        >>> files = [Path("1"), Path("2")]
        >>> decode_once(target, lambda: files, lambda path: np.full((1, 1, 1), path.name, np.uint8), (1, 1, 1))
        Preparing set ...
        tensor([[[[1]]],
        <BLANKLINE>
        <BLANKLINE>
                [[[2]]]], dtype=torch.uint8)
    """

    def read(path: Path) -> torch.Tensor:
        found = np.load(path, mmap_mode="c")
        if found.dtype != np.uint8 or found.shape != (n or len(found), *shape):
            raise ValueError(f"{found.dtype} of shape {found.shape}")
        return torch.from_numpy(found)

    def attempt(source: Source) -> np.ndarray | DamagedImagesError:
        try:
            return decode(source)
        except DamagedImagesError as error:  # returned and not raised, so that the final error names all damaged files
            return error

    def write(file) -> None:  # does not use a memory map, which would end in SIGBUS if the disk is full
        header = {"descr": "|u1", "fortran_order": False, "shape": (len(sources), *shape)}
        np.lib.format.write_array_header_1_0(file, header)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            decoded = pool.map(attempt, sources)
            for pixels in track(decoded, f"Preparing {escape(target.stem)}", total=len(sources)):
                if isinstance(pixels, DamagedImagesError):
                    damaged.extend(pixels.paths)
                else:
                    file.write(pixels.tobytes())
        if damaged:
            raise DamagedImagesError(sorted({*damaged}))

    if (known := read_cached(target, read)) is not None:
        return known
    sources = files()
    damaged: list[Path] = []
    write_whole(target, write)
    return read(target)


@contextlib.contextmanager
def open_image(path: Path) -> Iterator[Image.Image]:
    """Open an image file; use the pixels inside the context, because they are only decoded at their first use.

    Args:
        path: The file.

    Raises:
        DamagedImagesError: If the file is missing, not an image, or cannot be decoded.
        DataError: If the image is too large.

    Example:
        >>> with open_image(Path("nowhere.png")) as image:
        ...     image.size
        Traceback (most recent call last):
        eblvm_lit.data.prepared_files.DamagedImagesError: These files are missing, ... nowhere.png.
    """
    try:
        with Image.open(path, formats=FORMATS) as image:
            yield image
    except DataError:
        raise
    except Image.DecompressionBombError as error:
        raise DataError(
            f"{path} has more than the 179 megapixels up to which Pillow opens images: shrink it, or remove it from "
            "the folder."
        ) from error
    except Exception as error:  # the readers of different formats raise different exceptions
        raise DamagedImagesError([path]) from error


def size_of(image: Image.Image) -> tuple[int, int]:
    """Read the width and height of an image from its header, with the EXIF rotation applied.

    Example:
        >>> image = Image.new("L", (4, 3))
        >>> image.getexif()[ExifTags.Base.Orientation] = 6  # to be turned by 90 degrees
        >>> size_of(image)
        (3, 4)
    """
    # Orientations from 5 on exchange height and width. Pillow has already rotated TIFF images.
    lies = image.getexif().get(ExifTags.Base.Orientation, 1) >= 5 and image.format != "TIFF"
    return image.size[::-1] if lies else image.size


def decode_image(
    path: Path, *, mode: str = "RGB", crop: int | None, side: int | None, white: float | None = None
) -> np.ndarray:
    """Decode an image, apply its EXIF rotation, crop it around the centre and resize it.

    Args:
        path: The image file.
        mode: The mode to which the image is converted: ``L`` (grey) or ``RGB``.
        crop: Height and width of the central square in pixels; 0 for the largest square; None for the whole image.
        side: Height and width after antialiased bilinear resampling; None does not resize.
        white: The value of images of more than 8 bits that becomes 255; None for the largest value of 16 bits.

    Returns:
        The pixels, uint8, shape (1, height, width) or (3, height, width).

    Raises:
        DamagedImagesError: If the file cannot be decoded.
        DataError: If the image is smaller than the crop, or its values have 32 bits and ``white`` is not given.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "ramp.png")
        >>> Image.fromarray(np.arange(16, dtype=np.uint8).reshape(4, 4)).save(path)
        >>> decode_image(path, mode="L", crop=2, side=2).tolist()
        [[[5, 6], [9, 10]]]
    """
    with open_image(path) as stored:
        image = ImageOps.exif_transpose(in_eight_bits(path, stored, white)).convert(mode)
    width, height = image.size
    crop = min(image.size) if crop == 0 else crop
    if crop is not None:
        if min(width, height) < crop:
            raise DataError(f"{path} is {height} x {width} pixels, too small for data.crop={crop}.")
        left = round((width - crop) / 2)
        top = round((height - crop) / 2)
        image = image.crop((left, top, left + crop, top + crop))
    if side is not None and image.size != (side, side):
        image = image.resize((side, side), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
