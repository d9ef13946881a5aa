"""The feature statistics of the data with which samples are compared, cached in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, cast

import numpy as np
import torch
from pydantic import PositiveInt

from eblvm_lit.core.ranks import rank_and_size, sum_over_ranks
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.evaluation.features.base import FeatureExtractor
from eblvm_lit.evaluation.features.image_bytes import as_images, content_fingerprint
from eblvm_lit.evaluation.features.sets import FeatureSet, collect
from eblvm_lit.evaluation.frechet import Gaussian
from eblvm_lit.utils.digest import digest
from eblvm_lit.utils.io import read_arrays, read_cached, write_whole

__all__ = ["ReferenceImages"]


class ReferenceImages:
    """The feature statistics of one split, computed once and cached in a file that all runs share.

    Published FIDs compare samples with the training images; for CelebA, with 50,000 of them (Kan et al. 2022, code).
    The name of the file depends on everything that the statistics depend on: the data set, its split and content, the
    number of images, and the network.

    Args:
        cache_dir: Folder of the cached file.
        split: The split: ``train``, ``val`` or ``test``.
        n_max: Largest number of images; of a larger split, a fixed random subset is used. None uses all.
    """

    def __init__(
        self, *, cache_dir: str, split: Literal["train", "val", "test"] = "train", n_max: PositiveInt | None = 50_000
    ) -> None:
        self.cache_dir = cache_dir
        self.split = split
        self.n_max = n_max

    def size(self, data: ArrayDataModule) -> int:
        """Return the number of images from which the statistics are computed."""
        n = len(getattr(data.splits, self.split))
        return n if self.n_max is None else min(n, self.n_max)

    def path(self, data: ArrayDataModule, features: FeatureExtractor, *, rows: bool) -> Path:
        """Return the path of the cached file: ``.../reference-<data>-<split>-<n>-<network>-<digest>.npz``."""
        images = getattr(data.splits, self.split)
        n = self.size(data)
        parts = type(data).__name__, self.split, str(n), features.name
        facts = data.image_shape, content_fingerprint(images), features.fingerprint, features.dim, features.resize, rows
        return Path(self.cache_dir).expanduser() / f"{'-'.join(['reference', *parts, digest(*parts, *facts)])}.npz"

    def load(
        self,
        data: ArrayDataModule,
        features: FeatureExtractor,
        *,
        device: torch.device | str = "cpu",
        rows: bool = False,
    ) -> FeatureSet:
        """Read the statistics from the file or, if there is none, compute and write them.

        Args:
            data: The data, after ``setup``.
            features: The network, after ``prepare``.
            device: Device on which the network is evaluated.
            rows: Whether the statistics include the features of each image: 400 MB for 50,000 images and Inception.

        Returns:
            The feature statistics of the images.
        """
        path = self.path(data, features, rows=rows)
        n = self.size(data)
        known = read_cached(path, read_arrays)
        # Use the file only if every process has it: all processes must take the same branch, even if they do not share
        # the folder.
        if sum_over_ranks(torch.tensor(float(known is not None))) == rank_and_size()[1]:
            arrays = {name: torch.from_numpy(array) for name, array in cast("dict[str, np.ndarray]", known).items()}
            return FeatureSet(n, Gaussian(arrays["mean"], arrays["covariance"]), arrays.get("rows"))
        images = getattr(data.splits, self.split)
        order = self._order(data)
        found = collect(features, lambda i: as_images(data, images[order[i]]), n, device=device, rows=rows)
        if rank_and_size()[0] == 0:
            arrays = {"mean": found.gaussian.mean, "covariance": found.gaussian.covariance, "rows": found.rows}
            arrays = {name: value.numpy() for name, value in arrays.items() if value is not None}
            write_whole(path, lambda file: np.savez(file, **arrays))
        return found

    def _order(self, data: ArrayDataModule) -> torch.Tensor:
        """Return the indices of the images from which the statistics are computed."""
        n_all = len(getattr(data.splits, self.split))
        n = self.size(data)
        if n == n_all:
            return torch.arange(n)
        return torch.randperm(n_all, generator=keyed_generator(0, "reference images"))[:n].sort().values
