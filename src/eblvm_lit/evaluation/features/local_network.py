"""Networks of features whose weights are a file that the user has put in place."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path

from torch import nn

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.errors import ConfigError
from eblvm_lit.evaluation.features.base import FeatureExtractor
from eblvm_lit.evaluation.features.local_weights import find_local, read_checked

__all__ = ["LocalNetwork"]


class LocalNetwork(FeatureExtractor):
    """A network of a local file of weights. A subclass says where they come from, builds it, and passes images through.

    Args:
        cache_dir: Where the weights are looked for; they are not downloaded.
        weights: A file with other weights; None for the published ones.
        sha256: The SHA-256 that the file must have; None for other weights.
        batch_size: Images at a time.

    Raises:
        ConfigError: For fewer than one image at a time.

    Attributes:
        label: The network's name in sentences.
        url: Where the published weights come from.
        network: The network, after :meth:`prepare`.
    """

    label: str
    url: str
    network: nn.Module
    classifies = False

    def __init__(self, *, cache_dir: str, weights: str | None, sha256: str | None, batch_size: int) -> None:
        if batch_size < 1:
            raise ConfigError(f"{self.label} needs batch_size >= 1, not {batch_size}.")
        self.cache_dir, self.weights, self.sha256, self.batch_size = cache_dir, weights, sha256, batch_size
        self._fingerprint = ""

    @abstractmethod
    def build(self, content: bytes, path: Path) -> tuple[nn.Module, int]:
        """The network of a file's bytes, and the number of its features.

        Raises:
            DataError: The file is damaged.
            ConfigError: It is of another network.
        """

    def prepare(self, data: ArrayDataModule) -> None:  # noqa: ARG002 - the network is the same for all data
        """Find the weights and build the network, once.

        Raises:
            DataError: The file is missing, damaged, or another one.
            ConfigError: It is of another network.
        """
        if self._fingerprint:
            return
        path = find_local(self.weights, self.cache_dir, self.url, self.label)
        otherwise = "put the right one there, or set sha256=null for weights of your own"
        # the network is built from the bytes that were checked, and not from the file, which may have changed since
        content, digest = read_checked(path, self.sha256, f"the published file of {self.label}'s weights", otherwise)
        network, self.dim = self.build(content, path)
        self.network, self._fingerprint = network.float().requires_grad_(False).eval(), digest[:16]

    @property
    def fingerprint(self) -> str:
        """A digest of the file of weights."""
        return self._fingerprint
