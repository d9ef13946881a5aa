"""Atomic downloads of data files, and decoding of image files into one memory-mapped array."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.markup import escape
from rich.progress import track

from eblvm_lit.errors import DataError, EblvmError, escaped
from eblvm_lit.utils.foreign_files import check_regular
from eblvm_lit.utils.io import replacing

__all__ = ["decode_once", "fetch", "fingerprint", "load_array", "open_image", "stamps", "to_array"]

CHUNK = 256
MAX_PIXELS = 1 << 26  # of an image: decoded, four bytes each
LARGE = 1 << 22  # pixels of an image that is decoded alone: all threads together stay below a gigabyte
_one_large_image = threading.Lock()


def fetch(
    root: Path,
    names: Sequence[str],
    dataset: str,
    splits: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
) -> None:
    """Download a data set of torchvision if one of its files is missing; an interrupted download leaves nothing.

    Args:
        root: Folder of the files.
        names: The required files or folders, relative to root.
        dataset: The name of the class in ``torchvision.datasets``.
        splits: The splits to download, for a class that downloads one at a time.
        options: Other arguments of the class.

    Raises:
        DataError: A file is missing and cannot be downloaded.

    Example:
        >>> fetch(Path("/dev/null/mnist"), ["a.gz"], "MNIST")
        Traceback (most recent call last):
        eblvm_lit.errors.DataError: /dev/null/mnist/a.gz is missing and could not be downloaded (...): put the file ...
    """
    missing, had_root = [name for name in names if not os.path.exists(root / name)], os.path.exists(root)
    for name in names:
        if name not in missing and not os.path.isdir(root / name):
            check_regular(root / name, "delete it, and it is downloaded.")
    if not missing:
        return
    try:
        root.mkdir(parents=True, exist_ok=True)
        # inside root, so that moving a file to its place is one atomic step on the same disk
        with tempfile.TemporaryDirectory(prefix=".download-", dir=root) as folder:
            from torchvision import datasets  # a slow import, which only downloads need

            for split in [{"split": split} for split in splits] or [{}]:
                getattr(datasets, dataset)(Path(folder), download=True, **split, **(options or {}))
            for name in missing:
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (Path(folder) / name).rename(root / name)
    except Exception as error:  # exceptions of torchvision and the network share no base class
        if (root / missing[0]).exists():  # another process has downloaded them meanwhile
            fetch(root, names, dataset, splits, options)
            return
        if not had_root:
            with contextlib.suppress(OSError):  # leave no empty folder behind a mistyped name
                root.rmdir()
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(
            f"{root / missing[0]} is missing and could not be downloaded ({reason}): put the file of "
            f"torchvision.datasets.{dataset} there or set data.root to the folder that holds it."
        ) from error


def fingerprint(*parts: object) -> str:
    """Twelve hexadecimal digits that identify a list of values.

    Example:
        >>> fingerprint("a.jpg", 32) == fingerprint("a.jpg", 64)
        False
    """
    return hashlib.blake2b(repr(parts).encode(), digest_size=6).hexdigest()


def load_array(path: Path, shape: tuple[int, int, int], n: int | None = None) -> torch.Tensor:
    """Memory-map an array of bytes; unused parts are never read, and changes never reach the file.

    Args:
        path: A ``.npy`` file with uint8 values, as :func:`decode_once` writes it.
        shape: (C, H, W).
        n: The number of rows; None: any above zero.

    Raises:
        DataError: The file is not such an array, or is truncated.

    Example:
        >>> load_array(Path("/dev/null"), (3, 32, 32))
        Traceback (most recent call last):
        eblvm_lit.errors.DataError: /dev/null is a pipe, a socket or a device, not a file: delete it, and ...
    """
    check_regular(path, "delete it, and the images are prepared anew.")
    try:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            if version != (1, 0):  # of the others headers may have any length
                raise ValueError(f"version {version}")
            found, by_columns, dtype = np.lib.format.read_array_header_1_0(file)
            start, size = file.tell(), os.fstat(file.fileno()).st_size
        rows = found[0] if found else 0
        fits = found == (rows, *shape) and rows > 0 and n in (None, rows) and dtype == np.uint8 and not by_columns
        if not fits or size != start + math.prod(found):
            raise ValueError(f"{dtype} {found} in {size} bytes")
        return torch.from_numpy(np.memmap(path, np.uint8, "c", start, found))
    except Exception as error:  # numpy raises any exception for a damaged header
        raise DataError(f"{path} is damaged: delete it, and the images are prepared anew.") from error


def decode_once(
    target: Path, files: Sequence[Path], decode: Callable[[Path], np.ndarray], shape: tuple[int, int, int]
) -> torch.Tensor:
    """Decode image files into one array on disk at the first call; memory-map the array at every call.

    The array is written to a temporary file and renamed when it is complete, so that an interruption is harmless.

    Args:
        target: The ``.npy`` file; its name must identify its content.
        files: The images, in the order of the array.
        decode: Returns the pixels of a file, uint8, of the given shape; called from several threads.
        shape: (C, H, W).

    Returns:
        uint8, shape (len(files), C, H, W).

    Raises:
        DataError: An image cannot be decoded, or the array cannot be written.
    """
    if os.path.isfile(target):
        return load_array(target, shape, len(files) or None)
    n_bytes = len(files) * int(np.prod(shape))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if (
            shutil.disk_usage(target.parent).free < n_bytes
        ):  # writing a memory-mapped file to a full disk kills the process
            raise OSError(f"{n_bytes / 1e9:.1f} GB are needed")
        with replacing(target) as partial, ThreadPoolExecutor(os.cpu_count()) as pool:
            array = np.lib.format.open_memmap(partial, mode="w+", dtype=np.uint8, shape=(len(files), *shape))
            for first in track(range(0, len(files), CHUNK), escape(f"Preparing {escaped(target.stem)}")):
                part = files[first : first + CHUNK]
                array[first : first + len(part)] = list(pool.map(decode, part))
            array.flush()
    except OSError as error:
        raise DataError(
            f"{target} could not be written ({error}): set data.root to a folder with room that can be written to."
        ) from error
    return load_array(target, shape, len(files))


@contextlib.contextmanager
def open_image(path: Path) -> Iterator[Image.Image]:
    """Open an image file; its pixels are decoded at their first use, inside the context.

    Raises:
        DataError: The file is missing or not an image, is too large, or cannot be decoded.

    Example:
        >>> with open_image(Path("/dev/zero")) as image:
        ...     image.size
        Traceback (most recent call last):
        eblvm_lit.errors.DataError: /dev/zero is a pipe, a socket or a device, not a file: take it out of the folder.
    """
    check_regular(path, "take it out of the folder.")
    try:
        with Image.open(path, formats=_formats()) as image:
            n_pixels = math.prod(image.size)
            if n_pixels > MAX_PIXELS:
                raise DataError(f"{path} has more than {MAX_PIXELS:,} pixels: make it smaller.")
            with _one_large_image if n_pixels > LARGE else contextlib.nullcontext():
                yield image
    except EblvmError:
        raise
    except Exception as error:  # each format has its own exceptions, at opening and at decoding
        raise DataError(f"{path} is damaged or no image: mend it or take it out of the folder.") from error


@functools.cache
def _formats() -> tuple[str, ...]:
    """The formats that Pillow decodes itself: for the others it starts a program with the file."""
    Image.init()
    return tuple(name for name in Image.OPEN if name not in ("EPS", "WMF"))


def to_array(image: Image.Image, path: Path, *, crop: int | None, size: tuple[int, int]) -> np.ndarray:
    """Crop an image around its centre, resize it and return its pixels.

    Args:
        image: In mode L (grey) or RGB.
        path: The file of the image, for error messages.
        crop: Height and width of the central square in pixels; None keeps the whole image.
        size: (height, width) after antialiased bilinear resampling.

    Returns:
        uint8, shape (1, height, width) or (3, height, width).

    Raises:
        DataError: The image is smaller than the crop.

    Example:
        >>> image = Image.fromarray(np.arange(16, dtype=np.uint8).reshape(4, 4))
        >>> to_array(image, Path("ramp.png"), crop=2, size=(2, 2)).tolist()
        [[[5, 6], [9, 10]]]
    """
    width, height = image.size
    if crop is not None:
        if min(width, height) < crop:
            raise DataError(f"{path} is {height} x {width} pixels, too small for data.crop={crop}.")
        left, top = round((width - crop) / 2), round((height - crop) / 2)
        image = image.crop((left, top, left + crop, top + crop))
    if image.size != size[::-1]:
        image = image.resize(size[::-1], Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def stamps(files: Iterable[Path]) -> list[tuple[str, int, int]]:
    """Name, size and modification time of each file, which reveal a changed folder.

    Raises:
        DataError: One of them is not a file.
    """
    found = []
    for path in files:
        check_regular(path, "take it out of the folder.")
        status = path.stat()
        found.append((str(path), status.st_size, status.st_mtime_ns))
    return found
