"""The image network of CLIP, whose features were learned from captions."""

from __future__ import annotations

import io
from typing import cast

import torch
from torch import Tensor, nn

from eblvm_lit.evaluation.features.base import Features, Titles
from eblvm_lit.evaluation.features.local_network import LocalNetwork

__all__ = ["CLIPFeatures"]

SHA256 = "40d365715913c9da98579312b702a82c18be219cc2a73407c4526f58eba950af"
URL = f"https://openaipublic.azureedge.net/clip/models/{SHA256}/ViT-B-32.pt"


class CLIPFeatures(LocalNetwork):
    """The image embedding of CLIP, of 512 features with the published ViT-B/32, by torch-fidelity.

    Images are resized and normalised as torch-fidelity does it; grey is repeated. The criteria are ``fd_clip``,
    ``precision_clip`` and so on. Reference: Radford et al. 2021, arXiv 2103.00020; as a judge of samples
    Kynkaanniemi et al. 2023, arXiv 2203.06026.

    Args:
        cache_dir: Where the weights are looked for: one file of 354 MB, which is not downloaded.
        weights: A file with other weights, in OpenAI's format; None for the published ones.
        sha256: The SHA-256 that the file must have; None for other weights.
        batch_size: Images at a time.

    Example:
        >>> CLIPFeatures(cache_dir="outputs/cache").titles.frechet
        'fd_clip'
    """

    name, label, url, published = "clip", "CLIP", URL, SHA256
    titles = Titles("fd_clip", "kd_clip", "clip_score", "_clip")
    resize = "bilinear as by TensorFlow 1"

    def build(self, content: bytes) -> nn.Module:
        """CLIP's image network; see :meth:`LocalNetwork.build`."""
        from torch_fidelity.feature_extractor_clip import FeatureExtractorCLIP  # takes a second

        with torch.random.fork_rng(devices=[]):
            network = FeatureExtractorCLIP("clip-vit-b-32", ["clip"], cast(str, io.BytesIO(content)), verbose=False)
        self.dim = network.model.visual.output_dim
        return network

    def found(self, images: Tensor) -> Features:
        """Features (B, D); see :meth:`LocalNetwork.found`."""
        return Features(self.network(images)[0], None)
