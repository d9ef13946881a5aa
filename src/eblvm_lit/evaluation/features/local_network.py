"""Feature networks that load their weights from a local file after checking its SHA-256 digest."""

from __future__ import annotations

import hashlib
import io
from abc import abstractmethod
from pathlib import Path
from typing import Any

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from eblvm_lit.core.ranks import first_rank_first
from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.errors import DataError
from eblvm_lit.evaluation.features.base import FeatureExtractor, Features

__all__ = ["LocalNetwork", "as_tensors"]


class LocalNetwork(FeatureExtractor):
    """The base class of feature networks whose weights are read from a file.

    A subclass says where the weights come from, builds the network (:meth:`build`) and applies it (:meth:`found`).

    Args:
        cache_dir: The first folder to search for the weights; the second is the folder of torch's hub.
        weights: A file with other weights; None for the published ones.
        sha256: The SHA-256 digest that the file must have. ``published`` means :attr:`published`; None checks nothing,
            for other weights.
        batch_size: Number of images passed through the network at a time.

    Attributes:
        published: The SHA-256 digest of the published weights.
        label: The network's name in messages.
        url: The address of the published weights.
        downloads: Whether a missing file is downloaded into ``cache_dir``.
        network: The network, after :meth:`prepare`.
    """

    label: str
    url: str
    published: str
    downloads = False
    classifies = False
    network: nn.Module

    def __init__(
        self,
        *,
        cache_dir: str,
        weights: str | None = None,
        sha256: str | None = "published",
        batch_size: PositiveInt = 50,
    ) -> None:
        self.cache_dir = cache_dir
        self.weights = weights
        self.batch_size = batch_size
        self.sha256 = self.published if sha256 == "published" else sha256

    @abstractmethod
    def build(self, content: bytes) -> nn.Module:
        """Build the network from the bytes of its weights file, and set :attr:`dim` unless the class defines it."""

    @abstractmethod
    def found(self, images: Tensor) -> Features:
        """Compute the network's output for images (B, 3, H, W) on the network's device."""

    @torch.no_grad()
    def extract(self, images: Tensor) -> Features:
        """Compute the features of images; see :meth:`FeatureExtractor.extract`."""
        self.network.to(images.device)
        with torch.autocast(images.device.type, enabled=False):  # published results use full precision
            return self.found(images.expand(-1, 3, -1, -1))

    def prepare(self, data: ArrayDataModule) -> None:
        """Find or download the weights and build the network; later calls do nothing.

        Raises:
            DataError: If there is no file of weights, or if it has another SHA-256 digest.
        """
        if self.fingerprint:
            return
        path = first_rank_first(self.find)
        # Read the file only once, because it might change between the check and a second read.
        content = path.read_bytes()
        found = hashlib.sha256(content).hexdigest()
        if self.sha256 not in (None, found):
            raise DataError(
                f"{path} is not the published file of {self.label}'s weights (its SHA-256 is {found[:8]}... instead of "
                f"{self.sha256[:8]}...): put the right one there, or set sha256=null for weights of your own."
            )
        self.network = self.build(content).float().requires_grad_(False).eval()
        self.fingerprint = found[:16]

    def _places(self) -> list[Path]:
        """Return the paths at which the weights may be."""
        if self.weights is not None:
            return [Path(self.weights).expanduser()]
        name = self.url.rsplit("/", 1)[-1]
        return [Path(self.cache_dir).expanduser().absolute() / name, Path(torch.hub.get_dir()) / "checkpoints" / name]

    def lacking(self, data: ArrayDataModule) -> str:
        """Return the words that there are no weights, or nothing; see :meth:`FeatureExtractor.lacking`."""
        places = self._places()
        return "" if any(path.is_file() for path in places) else f"the weights of {self.label} are not at {places[0]}"

    def find(self) -> Path:
        """Return the path of the weights: the user's file, a file in ``cache_dir`` or torch's hub, or a downloaded one.

        Raises:
            DataError: If there is no such file, and it cannot be downloaded.
        """
        target = self._places()[0]
        for path in self._places():
            if path.is_file():
                return path
        if self.weights is not None:
            raise DataError(f"There is no file {self.weights} with the weights of {self.label}: correct weights=... .")
        reason = "which are not downloaded"
        if self.downloads:
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                torch.hub.download_url_to_file(self.url, str(target), hash_prefix=self.sha256)
                return target
            except Exception as error:  # download errors have no common base class
                reason = f"which could not be downloaded ({error})"
        raise DataError(f"{self.label} needs its weights, {reason}: put the file {self.url} at {target}.")


def as_tensors(content: bytes) -> dict[str, Any]:
    """Read a network's state dictionary from a file's bytes without executing code that the file may contain."""
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
