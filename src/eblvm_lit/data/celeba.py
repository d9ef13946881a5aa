"""CelebA: photographs of faces, cropped and resized to 32, 64 or 128 pixels."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.data.images import ImageDataModule, Images
from eblvm_lit.data.prepared_files import decode_once, fetch, fingerprint, open_image, to_array
from eblvm_lit.errors import ConfigError, DataError
from eblvm_lit.utils.foreign_files import read_bounded

__all__ = ["CelebA"]

FOLDER = "celeba"
LARGEST = 1 << 25  # bytes of a list; that of the attributes has 26 MB
IMAGES, PARTITION, ATTRIBUTES = "img_align_celeba", "list_eval_partition.txt", "list_attr_celeba.txt"


@dataclass(kw_only=True, eq=False)
class CelebA(ImageDataModule):
    """Faces, (3, size, size), cropped around the centre of the aligned photographs; labels are 40 attributes, 0 or 1.

    There are two protocols, whose FIDs are not comparable:

    - ``crop=140, value_range=unit, flip=true, subset=null`` (BiSM, VaGES): 182,637 training images, which are
      the official training and validation parts (the latter also serve as validation images), and 19,962 test images;
    - ``crop=160, value_range=symmetric, flip=false, subset=50000`` (BiDVL): 50,000 training and 1,000 test
      images, a fixed random subset of all 202,599.

    The files are those of torchvision's ``CelebA``: in ``root/celeba`` the folder ``img_align_celeba`` and the lists
    ``list_eval_partition.txt`` and ``list_attr_celeba.txt``; the latter is optional and holds the labels. The first
    use decodes the photographs into ``root/prepared``; later uses memory-map that file and need no photographs.

    Reference: Liu et al. 2015, "Deep learning face attributes in the wild"; Bao et al. 2020 and 2021; the crop of 160
    as in the code of BiDVL.

    Args:
        root: Folder with ``celeba``; missing files are downloaded to it.
        size: Height and width after resampling.
        crop: Height and width of the central square of the 218 x 178 pixels.
        subset: Number of training images drawn from the whole set; None uses the official parts.
        value_range, flip, val_size, train_on_val, flatten, batch_size, eval_batch_size, seed: As in the base class.

    Raises:
        ConfigError: If size, crop or subset is impossible.
        DataError: At loading, if a file is missing or damaged.

    Example:
        >>> CelebA(root="nowhere", size=64).event_shape
        (3, 64, 64)
    """

    subset_test_size = 1000

    size: int
    crop: int = 140
    subset: int | None = None
    flip: bool = True
    val_size: int | float = 19_867

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size < 1 or not 1 <= self.crop <= 178:
            raise ConfigError(
                f"data.size must be at least 1 and data.crop between 1 and 178, not {self.size} and {self.crop}."
            )
        if self.subset is not None and self.subset < 1:
            raise ConfigError(f"data.subset must be at least 1 or null, not {self.subset}.")
        self.image_shape = (3, self.size, self.size)

    def read(self) -> Images:
        """Read the lists, and decode the photographs at the first use."""
        folder = self.root / FOLDER
        if not (folder / PARTITION).is_file():
            self._fetch(IMAGES, PARTITION, ATTRIBUTES)
        names, n_train = self._choose(read_partition(folder / PARTITION))
        key = fingerprint(names, self.size, self.crop)
        target = self.root / "prepared" / f"celeba_{self.size}_crop{self.crop}_{key}.npy"
        if not target.is_file():
            self._fetch(IMAGES)
        files = [folder / IMAGES / name for name in names]
        decode = functools.partial(decode_face, crop=self.crop, size=self.size)
        faces = decode_once(target, files, decode, self.image_shape)
        if not os.path.lexists(folder / ATTRIBUTES):
            return Images(faces[:n_train], faces[n_train:])
        self.class_names, labels = read_attributes(folder / ATTRIBUTES, names)
        return Images(faces[:n_train], faces[n_train:], labels[:n_train], labels[n_train:])

    def _choose(self, parts: dict[str, int]) -> tuple[list[str], int]:
        """The names of all used images, training images first, and the number of training images."""
        names = sorted(parts, key=lambda name: (parts[name], name))
        if self.subset is None:
            return names, sum(part < 2 for part in parts.values())
        n = self.subset + self.subset_test_size
        if n > len(names):
            raise DataError(
                f"{self.root / FOLDER} lists {len(names)} images, too few for data.subset={self.subset} and "
                f"{self.subset_test_size} test images."
            )
        order = torch.randperm(len(names), generator=keyed_generator(0, "celeba", "subset"))[:n]
        return [names[i] for i in order.tolist()], self.subset

    def _fetch(self, *names: str) -> None:
        fetch(self.root, [f"{FOLDER}/{name}" for name in names], "CelebA")


def decode_face(path: Path, *, crop: int, size: int) -> np.ndarray:
    """One photograph, cropped and resampled, uint8 (3, size, size)."""
    with open_image(path) as image:
        if image.mode != "RGB":
            raise DataError(f"{path} is of mode {image.mode} instead of RGB.")
        return to_array(image, path, crop=crop, size=(size, size))


def read_partition(path: Path) -> dict[str, int]:
    """Read which part (0 training, 1 validation, 2 test) each image belongs to.

    Raises:
        DataError: A line is not a name and a part, a name is there twice or points outside the folder, or a part is
            empty.
    """
    try:
        pairs = [line.split() for line in _read_list(path).splitlines() if line.strip()]
        parts = {name: int(part) for name, part in pairs}
    except ValueError as error:
        raise DataError(f"{path} is damaged: its lines must be a file name and 0, 1 or 2.") from error
    if len(parts) < len(pairs):
        raise DataError(f"{path} is damaged: it names an image twice.")
    if climbing := [name for name in parts if Path(name).name != name or name == ".."]:
        raise DataError(f"{path} names {climbing[0]!r}, which is no file of its folder.")
    if set(parts.values()) != {0, 1, 2}:
        raise DataError(f"{path} must give images of the parts 0, 1 and 2, and gives {sorted(set(parts.values()))}.")
    return parts


def read_attributes(path: Path, names: list[str]) -> tuple[tuple[str, ...], torch.Tensor]:
    """Read the attributes of some images.

    Args:
        path: The number of images, the attributes' names, and for each image its name and −1 or 1 for each attribute.
        names: The images.

    Returns:
        The attributes' names, and 0 or 1, int64, shape (len(names), n_attributes).

    Raises:
        DataError: The file is damaged or lacks an image.
    """
    try:
        _, header, *lines = _read_list(path).splitlines()
        attributes = tuple(header.split())
        rows = {name: values for name, *values in (line.split() for line in lines if line.strip())}
    except ValueError as error:
        raise DataError(f"{path} is damaged: its lines must be a file name and -1 or 1 for each attribute.") from error
    if missing := next((name for name in names if name not in rows), None):
        raise DataError(f"{path} says nothing about {missing}.")
    if any(len(rows[name]) != len(attributes) or not {"-1", "1"}.issuperset(rows[name]) for name in names):
        raise DataError(f"{path} is damaged: its lines must be a file name and -1 or 1 for each attribute.")
    return attributes, torch.tensor([[int(value == "1") for value in rows[name]] for name in names])


def _read_list(path: Path) -> str:
    """The text of a list.

    Raises:
        ValueError: It is no text.
        DataError: It is no regular file, or too large.
    """
    return read_bounded(path, "delete it, and put a whole one there.", LARGEST).decode()
