"""Atomic downloads of data files, and decoding of image files into one memory-mapped array."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.markup import escape
from rich.progress import track

from eblvm_lit.errors import DataError
from eblvm_lit.utils.io import replacing

__all__ = ["decode_once", "fetch", "fingerprint", "load_array", "open_image", "stamps", "to_array"]

CHUNK = 256


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
    missing, had_root = [name for name in names if not (root / name).exists()], root.exists()
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


def load_array(path: Path) -> torch.Tensor:
    """Memory-map an array of bytes; unused parts are never read, and changes never reach the file.

    Args:
        path: A ``.npy`` file with uint8 values.

    Raises:
        DataError: The file is not such an array, or is truncated.
    """
    try:
        array = np.load(path, mmap_mode="c")
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} is damaged: delete it, and the images are prepared anew.") from error
    return torch.from_numpy(array)


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
    if target.is_file():
        return load_array(target)
    n_bytes = len(files) * int(np.prod(shape))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if (
            shutil.disk_usage(target.parent).free < n_bytes
        ):  # writing a memory-mapped file to a full disk kills the process
            raise OSError(f"{n_bytes / 1e9:.1f} GB are needed")
        with replacing(target) as partial, ThreadPoolExecutor(os.cpu_count()) as pool:
            array = np.lib.format.open_memmap(partial, mode="w+", dtype=np.uint8, shape=(len(files), *shape))
            for first in track(range(0, len(files), CHUNK), escape(f"Preparing {target.stem}")):
                part = files[first : first + CHUNK]
                array[first : first + len(part)] = list(pool.map(decode, part))
            array.flush()
    except OSError as error:
        raise DataError(
            f"{target} could not be written ({error}): set data.root to a folder with room that can be written to."
        ) from error
    return load_array(target)


def open_image(path: Path) -> Image.Image:
    """Open an image file; its pixels are decoded at their first use.

    Raises:
        DataError: The file is missing or not an image.
    """
    try:
        return Image.open(path)
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing.") from error
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} is damaged or no image: mend it or take it out of the folder.") from error


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
        DataError: The file is truncated, or smaller than the crop.

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
    try:
        if image.size != size[::-1]:
            image = image.resize(size[::-1], Image.Resampling.BILINEAR)
        pixels = np.asarray(image)
    except (OSError, ValueError, SyntaxError) as error:  # a truncated file fails when its pixels are decoded
        raise DataError(f"{path} is damaged: mend it or take it out of the folder.") from error
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def stamps(files: Iterable[Path]) -> list[tuple[str, int, int]]:
    """Name, size and modification time of each file, which reveal a changed folder."""
    found = []
    for path in files:
        status = path.stat()
        found.append((str(path), status.st_size, status.st_mtime_ns))
    return found
