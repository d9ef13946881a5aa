"""The Inception network that defines FID, KID and the Inception score."""

from __future__ import annotations

import io
from typing import Any, cast

import torch
from torch import Tensor, nn

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.errors import ConfigError
from eblvm_lit.evaluation.features.base import FeatureExtractor, Features, Titles
from eblvm_lit.evaluation.features.inception_weights import SHA256, find_weights, read_weights

__all__ = ["InceptionFeatures"]


class InceptionFeatures(FeatureExtractor):
    """Pooled features (2048) and unbiased logits (1008) of the TensorFlow Inception network, by torch-fidelity.

    Images are resized to 299 x 299 as TensorFlow 1 does it, bilinearly and without antialiasing; grey is repeated.
    Reference: Heusel et al. 2017 (TTUR); weights of 2015-12-05, converted by torch-fidelity.

    Args:
        cache_dir: Where the weights are looked for and downloaded to: one file of 91 MB.
        weights: A file with other weights; None for the published ones.
        sha256: The SHA-256 that the file must have; None for other weights.
        batch_size: Images at a time.

    Raises:
        ConfigError: For fewer than one image at a time.

    Example:
        >>> InceptionFeatures(cache_dir="outputs/cache").titles.frechet
        'fid'
    """

    name = "inception"
    titles = Titles("fid", "kid", "inception_score")
    dim = 2048
    resize = "bilinear to 299 x 299 as by TensorFlow 1"

    def __init__(
        self, *, cache_dir: str, weights: str | None = None, sha256: str | None = SHA256, batch_size: int = 50
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"The Inception network needs batch_size >= 1, not {batch_size}.")
        self.cache_dir, self.weights, self.sha256, self.batch_size = cache_dir, weights, sha256, batch_size
        self._network: nn.Module | None = None
        self._fingerprint = ""

    def prepare(self, data: ArrayDataModule) -> None:  # noqa: ARG002 - the network is the same for all data
        """Find or download the weights and build the network, once.

        Raises:
            DataError: The file is missing, or another one.
            ConfigError: It is of another network.
        """
        if self._network is None:
            path = find_weights(self.weights, self.cache_dir, self.sha256)
            state, digest = read_weights(path, self.sha256)
            try:
                self._network = build_inception(state)
            except (RuntimeError, TypeError, AttributeError) as error:
                reason = " ".join(str(error).split())[:200]
                raise ConfigError(f"{path} holds weights of another network than FID's ({reason}).") from error
            self._fingerprint = digest[:16]

    @property
    def fingerprint(self) -> str:
        """A digest of the file of weights."""
        return self._fingerprint

    @torch.no_grad()
    def extract(self, images: Tensor) -> Features:
        """Features (B, 2048) and logits (B, 1008); see :meth:`FeatureExtractor.extract`."""
        network = cast(nn.Module, self._network).to(images.device)
        with torch.autocast(images.device.type, enabled=False):  # published numbers are computed in full precision
            return Features(*network(images.expand(-1, 3, -1, -1)))


def build_inception(state: dict[str, Any]) -> nn.Module:
    """torch-fidelity's network with given weights: uint8 (B, 3, H, W) to features (B, 2048) and logits (B, 1008)."""
    from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3  # takes a second

    # The library unpickles the file that it is given, which may execute code: we give it a copy of checked tensors.
    copy = io.BytesIO()
    torch.save(state, copy)
    copy.seek(0)
    outputs = ["2048", "logits_unbiased"]
    with torch.random.fork_rng(devices=[]):  # it draws initial weights, which are then overwritten
        return FeatureExtractorInceptionV3("inception", outputs, feature_extractor_weights_path=copy)
