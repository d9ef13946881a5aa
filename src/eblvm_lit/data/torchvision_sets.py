"""The image sets of torchvision: MNIST, FashionMNIST, CIFAR, SVHN and CelebA; as outliers, Textures and Places365."""

from __future__ import annotations

import functools
import gzip
import os
import shutil
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import PositiveInt
from torchvision import datasets
from torchvision.datasets.mnist import read_sn3_pascalvincent_tensor
from torchvision.datasets.utils import check_integrity

from eblvm_lit.core.ranges import Fraction
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.data.images import ImageDataModule, Images, SmallImageDataModule, resample
from eblvm_lit.data.prepared_files import decode_image, decode_once, fingerprint
from eblvm_lit.errors import DataError

__all__ = ["CIFAR10", "CIFAR100", "MNIST", "SVHN", "CelebA", "FashionMNIST", "Places365", "Textures"]

FOLDER = "celeba"
IMAGES = "img_align_celeba"


class TorchvisionImages(SmallImageDataModule):
    """The base class of image sets of 32 x 32 pixels that torchvision provides.

    By default the last 10,000 training images also serve as validation images. The files are those of torchvision;
    missing files are downloaded.

    Args:
        root: Folder of the files.
        size, value_range, flip, val_size, train_on_val, flatten, batch_size, eval_batch_size, seed: As in the base
            classes.

    Raises:
        DataError: Raised by ``setup`` if a file is missing or damaged.
    """

    dataset: ClassVar[Any]  # the data set's class in torchvision.datasets
    padding = 0  # number of rows and columns of zeros added at each edge

    @abstractmethod
    def files(self) -> dict[str, str | None]:
        """Return a dict from each file's path relative to the root to its MD5 sum, or None if it is not checked."""

    @abstractmethod
    def parts(self) -> list[tuple[Any, Any]]:
        """Read the images (n, C, H, W) and the labels (n,) of the training and the test part."""

    def download(self, folder: str) -> None:
        """Download the data set's files to a folder."""
        self.dataset(folder, download=True)

    def read(self) -> Images:
        """Download missing files, check all files, and read the training and the test part."""
        ensure(self.root, self.files(), self.dataset.__name__, self.download)
        pixels, labels = zip(*self.parts(), strict=True)
        images = (torch.as_tensor(np.ascontiguousarray(x)) for x in pixels)
        smaller = (resample(x, padding=self.padding, size=self.size) for x in images)
        return Images(*smaller, *map(torch.as_tensor, labels))


@dataclass(kw_only=True, eq=False)
class MNIST(TorchvisionImages):
    """Handwritten digits of 28 x 28 pixels, zero-padded to (1, 32, 32); the labels are the digits.

    With ``size=28`` the images are not padded.

    There are 60,000 training and 10,000 test images (``root/MNIST/raw/*-ubyte``, with or without ``.gz``). Reference:
    Bao et al. 2020 (BiSM), appendix; data by Y. LeCun, C. Cortes and C. Burges.

    Example:
        >>> MNIST(root="nowhere").event_shape, MNIST(root="nowhere", size=16).event_shape
        ((1, 32, 32), (1, 16, 16))
    """

    dataset = datasets.MNIST
    channels = 1
    class_names: ClassVar[tuple[str, ...] | None] = tuple("0123456789")

    size: Literal[8, 16, 28, 32] = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        self.padding = 0 if self.size == 28 else 2

    def files(self) -> dict[str, str | None]:
        """Return the files of images and labels, with the training part first.

        A compressed file (``.gz``) is returned if the decompressed file does not exist.
        """
        names = [f"{self.dataset.__name__}/raw/{name.removesuffix('.gz')}" for name, _ in self.dataset.resources]
        return {name if (self.root / name).exists() else f"{name}.gz": None for name in names}

    def parts(self) -> list[tuple[Any, Any]]:
        """Read the images (n, 1, 28, 28) and the labels (n,) of the training and the test part."""
        train, labels, test, test_labels = (read_idx(self.root / name) for name in self.files())
        return [(train[:, None], labels.long()), (test[:, None], test_labels.long())]


class FashionMNIST(MNIST):
    """Pictures of clothes in the format of MNIST, zero-padded to (1, 32, 32); the labels are ten kinds of clothes.

    There are 60,000 training and 10,000 test images (``root/FashionMNIST/raw``). Reference: Xiao, Rasul and Vollgraf
    2017, "Fashion-MNIST".

    Example:
        >>> FashionMNIST(root="nowhere").class_names[9]
        'ankle boot'
    """

    dataset = datasets.FashionMNIST
    class_names = (
        *("T-shirt/top", "trouser", "pullover", "dress", "coat"),
        *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
    )


class CIFAR10(TorchvisionImages):
    """Small photographs, (3, 32, 32), of ten classes of objects.

    There are 50,000 training and 10,000 test images (``root/cifar-10-batches-py``). Reference: Bao et al. 2020 (BiSM),
    appendix, who train on all 50,000, in [0, 1] and without flips; data by A. Krizhevsky.

    Example:
        >>> CIFAR10(root="nowhere").event_shape, CIFAR10.class_names[6]
        ((3, 32, 32), 'frog')
    """

    dataset = datasets.CIFAR10
    class_names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

    def files(self) -> dict[str, str | None]:
        """Return the pickle files with their MD5 sums, which are checked because reading a pickle can execute code."""
        meta = self.dataset.meta
        files = (*self.dataset.train_list, *self.dataset.test_list, (meta["filename"], meta["md5"]))
        return {f"{self.dataset.base_folder}/{name}": md5 for name, md5 in files}

    def parts(self) -> list[tuple[Any, Any]]:
        """Read the training and the test part, and convert their images from channels-last to channels-first."""
        parts = (self.dataset(self.root, train=train) for train in (True, False))
        return [(part.data.transpose(0, 3, 1, 2), part.targets) for part in parts]


class CIFAR100(CIFAR10):
    """Small photographs, (3, 32, 32), of a hundred classes of objects, none of which is a class of CIFAR10.

    There are 50,000 training and 10,000 test images (``root/cifar-100-python``). Reference: Krizhevsky 2009, "Learning
    multiple layers of features from tiny images".

    Example:
        >>> CIFAR100(root="nowhere").event_shape
        (3, 32, 32)
    """

    dataset = datasets.CIFAR100
    class_names = None


class SVHN(TorchvisionImages):
    """Photographs of house numbers, (3, 32, 32); the label is the digit in the middle.

    There are 73,257 training and 26,032 test images (``root/train_32x32.mat`` and ``test_32x32.mat``); the 531,131
    easier extra images are not used. Reference: Netzer et al. 2011, "Reading digits in natural images with unsupervised
    feature learning".

    Example:
        >>> SVHN(root="nowhere").event_shape
        (3, 32, 32)
    """

    dataset = datasets.SVHN
    class_names = tuple("0123456789")
    splits_read = ("train", "test")

    def files(self) -> dict[str, str | None]:
        """Return the two MATLAB files and their MD5 sums."""
        listed = (self.dataset.split_list[split] for split in self.splits_read)
        return {name: md5 for _, name, md5 in listed}

    def download(self, folder: str) -> None:
        """Download the two MATLAB files, each by a separate call of torchvision."""
        for split in self.splits_read:
            self.dataset(folder, split, download=True)

    def parts(self) -> list[tuple[Any, Any]]:
        """Read the images and the labels of the training and the test part."""
        parts = (self.dataset(self.root, split) for split in self.splits_read)
        return [(part.data, part.labels) for part in parts]


@dataclass(kw_only=True, eq=False)
class CelebA(ImageDataModule):
    """Faces, (3, size, size), cropped around the centre of the aligned photographs; labels are 40 binary attributes.

    The papers use it in two ways, whose FIDs are not comparable:

    - ``crop=140, value_range=unit, flip=true, subset=null`` (BiSM, VaGES): 182,637 training images, which are
      the official training and validation parts (the latter also serve as validation images), and 19,962 test images;
    - ``crop=160, value_range=symmetric, flip=false, subset=50000`` (BiDVL): 50,000 training and 1,000 test
      images, a fixed random subset of all 202,599.

    The files are in ``root/celeba``: the folder ``img_align_celeba``, the list ``list_eval_partition.txt`` and, only
    for labels, the list ``list_attr_celeba.txt``. The first use decodes the photographs into ``root/prepared``; later
    uses memory-map that file and do not need the photographs. torchvision downloads the files and provides their MD5
    sums, but pandas reads the lists, in 1.1 s: torchvision's class would take 27 s at every start.

    Reference: Liu et al. 2015, "Deep learning face attributes in the wild"; Bao et al. 2020 and 2021; the crop of 160
    as in the code of BiDVL.

    Args:
        root: Folder that contains ``celeba``; missing files are downloaded to it.
        size: Height and width after resampling.
        crop: Height and width, in pixels, of the central square of a photograph, which has 218 x 178 pixels.
        subset: Number of training images drawn from the whole set; None uses the official parts.
        value_range, flip, val_size, train_on_val, flatten, batch_size, eval_batch_size, seed: As in the base class.

    Raises:
        DataError: Raised by ``setup`` if a file is missing or damaged.

    Example:
        >>> CelebA(root="nowhere", size=64).event_shape
        (3, 64, 64)
    """

    subset_test_size = 1000

    size: PositiveInt
    crop: PositiveInt = 140
    subset: PositiveInt | None = None
    flip: bool = True
    val_size: PositiveInt | Fraction = 19_867

    def __post_init__(self) -> None:
        super().__post_init__()
        self.image_shape = (3, self.size, self.size)

    def read(self) -> Images:
        """Read the lists of photographs and attributes, and decode the photographs unless this was done before."""
        import pandas as pd  # imported here, because the import is slow

        folder = self.root / FOLDER
        partition = "list_eval_partition.txt"
        attributes = "list_attr_celeba.txt"
        self._ensure(partition)
        parts = pd.read_csv(folder / partition, sep=r"\s+", header=None, index_col=0)[1]
        names, n_train = self._choose(parts.sort_index().sort_values(kind="stable"))
        key = fingerprint(names, self.size, self.crop)
        target = self.root / "prepared" / f"celeba_{self.size}_crop{self.crop}_{key}.npy"

        def photographs() -> list[Path]:
            self._ensure(IMAGES)
            return [folder / IMAGES / name for name in names]

        decode = functools.partial(decode_image, crop=self.crop, side=self.size)
        faces = decode_once(target, photographs, decode, self.image_shape, len(names))
        if not (folder / attributes).exists():
            return Images(faces[:n_train], faces[n_train:])
        self._ensure(attributes)
        table = pd.read_csv(folder / attributes, sep=r"\s+", skiprows=1)
        self.class_names = tuple(table)
        labels = torch.from_numpy((table.loc[names].to_numpy() == 1).astype(np.int64))
        return Images(faces[:n_train], faces[n_train:], labels[:n_train], labels[n_train:])

    def _choose(self, parts: Any) -> tuple[list[str], int]:
        """Return the file names of the chosen images, training images first, and the number of training images."""
        names = parts.index.tolist()
        if self.subset is None:
            return names, int((parts < 2).sum())
        order = torch.randperm(len(names), generator=keyed_generator(0, "celeba", "subset")).tolist()
        return [names[i] for i in order[: self.subset + self.subset_test_size]], self.subset

    def _ensure(self, name: str) -> None:
        md5 = {listed: md5 for _, md5, listed in datasets.CelebA.file_list}.get(name)
        ensure(self.root, {f"{FOLDER}/{name}": md5}, "CelebA", lambda to: datasets.CelebA(to, download=True))


@dataclass(kw_only=True, eq=False)
class Photographs(ImageDataModule):
    """The base class of sets of colour photographs of any size; they are cropped to a central square and resized.

    These sets serve as outliers: the training and the test split are the same and contain all photographs. The first
    use decodes them into ``root/prepared``; later uses do not need the photographs. Missing files are downloaded.

    Args:
        root: Folder of the files.
        size: Height and width of the central square after resizing.
        n_max: Largest number of photographs; the first ones are used. None uses all.
        value_range, flip, val_size, train_on_val, flatten, batch_size, eval_batch_size, seed: As in the base class.
    """

    size: PositiveInt = 32
    n_max: PositiveInt | None = None
    val_size: PositiveInt | Fraction = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.image_shape = (3, self.size, self.size)

    @abstractmethod
    def files(self) -> list[Path]:
        """Return the paths of all photographs in a fixed order; missing files are downloaded."""

    def read(self) -> Images:
        """Decode the photographs, unless an earlier call has stored the decoded ones."""
        name = type(self).__name__
        target = self.root / "prepared" / f"{name}_{self.size}_{fingerprint(name, self.image_shape, self.n_max)}.npy"
        decode = functools.partial(decode_image, crop=0, side=self.size)
        pixels = decode_once(target, lambda: self.files()[: self.n_max], decode, self.image_shape)
        return Images(pixels, pixels)


class Textures(Photographs):
    """The 5,640 photographs of all splits of the Describable Textures Dataset, as in OpenOOD.

    The files are those of torchvision's ``DTD`` (``root/dtd``). Reference: Cimpoi et al. 2014, "Describing textures in
    the wild"; Zhang et al. 2023, arXiv 2306.09301 (OpenOOD).

    Example:
        >>> Textures(root="nowhere").event_shape
        (3, 32, 32)
    """

    def files(self) -> list[Path]:
        """Return the paths of the photographs of all three splits."""
        ensure(self.root, {"dtd/dtd": None}, "DTD", lambda to: datasets.DTD(to, download=True))
        parts = [datasets.DTD(self.root, split, loader=Path) for split in ("train", "val", "test")]
        return [part[i][0] for part in parts for i in range(len(part))]


class Places365(Photographs):
    """The 36,500 validation photographs of Places365, which have 256 x 256 pixels and show 365 kinds of places.

    Their order is random. The files are those of torchvision's ``Places365`` (in ``root/places365``). OpenOOD leaves
    out about a thousand photographs that show objects of CIFAR's classes; here they are included. Reference: Zhou et
    al. 2017, "Places: a 10 million image database for scene recognition"; Zhang et al. 2023, arXiv 2306.09301.

    Example:
        >>> Places365(root="nowhere", n_max=10_000).n_max
        10000
    """

    def files(self) -> list[Path]:
        """Return the paths of the photographs in the order of the official list."""
        folder = self.root / "places365"
        small = {"split": "val", "small": True}
        needed = dict.fromkeys(("val_256", "places365_val.txt", "categories_places365.txt"))
        ensure(folder, needed, "Places365", lambda to: datasets.Places365(to, download=True, **small))
        return [Path(path) for path, _ in datasets.Places365(folder, **small).imgs]


def ensure(root: Path, files: Mapping[str, str | None], dataset: str, download: Callable[[str], object]) -> None:
    """Download a data set if a file is missing, and check the MD5 sums of its files before they are read.

    Args:
        root: Folder of the files.
        files: Files or folders, relative to ``root``, and their MD5 sums; None if a file is not checked.
        dataset: The name of the class in ``torchvision.datasets``, for the error message.
        download: A function that downloads all files to a folder. The folder is temporary, and the complete files are
            moved from it, so that an interrupted download leaves no partial file.

    Raises:
        DataError: If a file is missing and cannot be downloaded, or is damaged.

    Example:
        >>> ensure(Path("/dev/null/mnist"), {"a.gz": None}, "MNIST", print)
        Traceback (most recent call last):
        eblvm_lit.errors.DataError: /dev/null/mnist/a.gz is missing and could not be downloaded (...): put the files ...
    """
    missing = next((root / name for name in files if not os.path.exists(root / name)), None)
    if missing is not None:
        try:
            root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".download-", dir=root) as folder:
                download(folder)
                shutil.copytree(folder, root, dirs_exist_ok=True, copy_function=os.replace)
        except Exception as error:  # exceptions of torchvision and of the network have no common base class
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise DataError(
                f"{missing} is missing and could not be downloaded ({reason}): put the files of "
                f"torchvision.datasets.{dataset} there or set data.root to the folder that contains them."
            ) from error
    for name, md5 in files.items():
        if md5 is not None and not check_integrity(root / name, md5):
            raise DataError(
                f"{root / name} is damaged, as its MD5 sum is not {md5}: delete it, so that it is downloaded again, or "
                "put an undamaged copy there."
            )


def read_idx(path: Path) -> torch.Tensor:
    """Read an MNIST file in the IDX format, compressed or not.

    torchvision reads only decompressed files, and decompresses a file only if its MD5 sum is that of the official one;
    a file that was compressed again has another sum. This function relies on gzip's own checksum instead.

    Args:
        path: The file; its name ends in ``.gz`` if it is compressed.

    Returns:
        The content of the file, uint8.
    """
    if path.suffix != ".gz":
        return read_sn3_pascalvincent_tensor(str(path))
    with tempfile.NamedTemporaryFile() as file:
        file.write(gzip.decompress(path.read_bytes()))
        file.flush()
        return read_sn3_pascalvincent_tensor(file.name)
