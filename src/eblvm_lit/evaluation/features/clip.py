"""The image network of CLIP, whose features were learned from captions."""

from __future__ import annotations

import io
from typing import cast

import torch
from torch import Tensor, nn

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.errors import ConfigError
from eblvm_lit.evaluation.features.base import FeatureExtractor, Features, Titles
from eblvm_lit.evaluation.features.local_weights import find_local, read_checked

__all__ = ["CLIPFeatures"]

SHA256 = "40d365715913c9da98579312b702a82c18be219cc2a73407c4526f58eba950af"
URL = f"https://openaipublic.azureedge.net/clip/models/{SHA256}/ViT-B-32.pt"


class CLIPFeatures(FeatureExtractor):
    """The image embedding of CLIP, of 512 features with the published ViT-B/32, by torch-fidelity.

    Images are resized and normalised as torch-fidelity does it; grey is repeated. The criteria are ``fd_clip``,
    ``precision_clip`` and so on. Reference: Radford et al. 2021, arXiv 2103.00020; as a judge of samples
    Kynkaanniemi et al. 2023, arXiv 2203.06026.

    Args:
        cache_dir: Where the weights are looked for: one file of 354 MB, which is not downloaded.
        weights: A file with other weights, in OpenAI's format; None for the published ones.
        sha256: The SHA-256 that the file must have; None for other weights.
        batch_size: Images at a time.

    Raises:
        ConfigError: For fewer than one image at a time.

    Example:
        >>> CLIPFeatures(cache_dir="outputs/cache").titles.frechet
        'fd_clip'
    """

    name = "clip"
    titles = Titles("fd_clip", "kd_clip", "clip_score", "_clip")
    resize = "bilinear as by TensorFlow 1"
    classifies = False

    def __init__(
        self, *, cache_dir: str, weights: str | None = None, sha256: str | None = SHA256, batch_size: int = 50
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"CLIP needs batch_size >= 1, not {batch_size}.")
        self.cache_dir, self.weights, self.sha256, self.batch_size = cache_dir, weights, sha256, batch_size
        self._network: nn.Module | None = None
        self._fingerprint = ""

    def prepare(self, data: ArrayDataModule) -> None:  # noqa: ARG002 - the network is the same for all data
        """Find the weights and build the network, once.

        Raises:
            DataError: The file is missing, or another one.
            ConfigError: It is of another network.
        """
        if self._network is not None:
            return
        from torch_fidelity.feature_extractor_clip import FeatureExtractorCLIP  # takes a second

        path = find_local(self.weights, self.cache_dir, URL, "CLIP")
        otherwise = "put the right one there, or set sha256=null for weights of your own"
        content, digest = read_checked(path, self.sha256, "the published file of CLIP's weights", otherwise)
        try:  # from the bytes that were checked, and not from the file, which may have changed since
            with torch.random.fork_rng(devices=[]):
                network = FeatureExtractorCLIP("clip-vit-b-32", ["clip"], cast(str, io.BytesIO(content)), verbose=False)
        except (RuntimeError, KeyError, AttributeError, ValueError, ZeroDivisionError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(f"{path} holds no weights of CLIP in OpenAI's format ({reason}).") from error
        self._network, self.dim = network, network.model.visual.output_dim
        self._fingerprint = digest[:16]

    @property
    def fingerprint(self) -> str:
        """A digest of the file of weights."""
        return self._fingerprint

    @torch.no_grad()
    def extract(self, images: Tensor) -> Features:
        """Features (B, D); see :meth:`FeatureExtractor.extract`."""
        network = cast(nn.Module, self._network).to(images.device)
        with torch.autocast(images.device.type, enabled=False):
            return Features(network(images.expand(-1, 3, -1, -1))[0], None)
