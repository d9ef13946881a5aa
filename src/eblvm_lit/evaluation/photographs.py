"""Photographs of textures and places as outliers, by torchvision's own loaders."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.data.images import ValueRange
from eblvm_lit.data.prepared_files import decode_once, fetch, fingerprint, open_image, to_array
from eblvm_lit.evaluation.out_of_distribution import OutlierSet, check_images, fitted_to

__all__ = ["Places365", "Textures"]


class _Photographs(OutlierSet):
    """Colour photographs of any size: the central square, resized; decoded once into ``root/prepared``."""

    def __init__(
        self, *, root: str, size: int = 32, n_max: int | None = None, value_range: ValueRange = "unit"
    ) -> None:
        self.root = Path(root).expanduser().absolute()
        self.size, self.n_max, self.value_range = size, n_max, value_range
        self._pixels: Tensor | None = None

    @abstractmethod
    def files(self) -> list[Path]:
        """All photographs in a fixed order; missing ones are downloaded."""

    def prepare(self, data: ArrayDataModule) -> None:
        """Check that the data are images, and decode the photographs at the first use."""
        check_images(data.event_shape, type(self).__name__)
        self._read()

    def draw(self, v: Tensor, generator: torch.Generator) -> Tensor:  # noqa: ARG002 - nothing is random
        """Shape (m, *event)."""
        w = self._read().to(v) / 255
        return fitted_to(w if self.value_range == "unit" else 2 * w - 1, v)

    def _read(self) -> Tensor:
        """The pixels, uint8, shape (m, 3, size, size)."""
        if self._pixels is None:
            name, shape = type(self).__name__, (3, self.size, self.size)
            target = self.root / "prepared" / f"{name}_{self.size}_{fingerprint(name, shape, self.n_max)}.npy"
            files = [] if target.is_file() else self.files()[: self.n_max]
            self._pixels = decode_once(target, files, self._decode, shape)
        return self._pixels

    def _decode(self, path: Path) -> np.ndarray:
        with open_image(path) as image:
            return to_array(image.convert("RGB"), path, crop=min(image.size), size=(self.size, self.size))

    def _listed(self, dataset: str, **options: Any) -> list[Path]:
        """The files of one of torchvision's data sets."""
        from torchvision import datasets  # a slow import, which only the first use needs

        found = getattr(datasets, dataset)(loader=Path, **options)
        return [found[i][0] for i in range(len(found))]


class Textures(_Photographs):
    """The 5,640 textures of the Describable Textures Dataset, all of its splits, as OpenOOD takes them.

    The files are those of torchvision's ``DTD`` (``root/dtd``); missing ones are downloaded. Reference: Cimpoi et al.
    2014, "Describing textures in the wild"; Zhang et al. 2023, arXiv 2306.09301 (OpenOOD).

    Args:
        root: Folder with ``dtd``.
        size: Height and width of the central square after resizing.
        n_max: Largest number of photographs; the first ones are used.
        value_range: Scale of the data they are compared with.

    Raises:
        DataError: At preparing, if files are missing.

    Example:
        >>> Textures(root="nowhere", size=32).size
        32
    """

    def files(self) -> list[Path]:
        """The photographs of the three splits."""
        fetch(self.root, ["dtd/dtd"], "DTD")
        parts = (self._listed("DTD", root=self.root, split=split) for split in ("train", "val", "test"))
        return [path for part in parts for path in part]


class Places365(_Photographs):
    """The validation photographs of Places365, 36,500 of 365 kinds of places, with a side of 256 pixels.

    The files are those of torchvision's ``Places365`` (in ``root/places365``); missing ones are downloaded. OpenOOD
    leaves out about a thousand, of places that show the classes of CIFAR; these are not left out here. Reference: Zhou
    et al. 2017, "Places: a 10 million image database for scene recognition"; Zhang et al. 2023, arXiv 2306.09301.

    Args:
        root: Folder with ``places365``.
        size: Height and width of the central square after resizing.
        n_max: Largest number of photographs; the first ones are used, which are in no order of classes.
        value_range: Scale of the data they are compared with.

    Raises:
        DataError: At preparing, if files are missing.

    Example:
        >>> Places365(root="nowhere", n_max=10_000).n_max
        10000
    """

    def files(self) -> list[Path]:
        """The photographs in the order of the list."""
        folder, options = self.root / "places365", {"split": "val", "small": True}
        fetch(folder, ["val_256", "places365_val.txt", "categories_places365.txt"], "Places365", options=options)
        return self._listed("Places365", root=folder, **options)
