"""The Inception network that defines FID, KID and the Inception score."""

from __future__ import annotations

import io

import torch
from torch import Tensor, nn

from eblvm_lit.evaluation.features.base import Features, Titles
from eblvm_lit.evaluation.features.local_network import LocalNetwork, as_tensors

__all__ = ["InceptionFeatures"]

SHA256 = "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2"
RELEASE = "https://github.com/toshas/torch-fidelity/releases/download/v0.2.0"


class InceptionFeatures(LocalNetwork):
    """The TensorFlow Inception network as converted by torch-fidelity: 2048 pooled features and 1008 logits.

    The logits are computed without the last layer's bias, as usual for the Inception score. Images are resized to 299 x
    299 as in TensorFlow 1, bilinearly and without antialiasing; grey images become colour by repeating the channel.
    Reference: Heusel et al. 2017 (TTUR); weights of 2015-12-05, converted by torch-fidelity.

    Args:
        cache_dir: The folder in which the weights are searched and to which they are downloaded, one file of 91 MB.
        weights: A file with other weights; None for the published ones.
        sha256: The SHA-256 digest that the file must have; None for other weights.
        batch_size: Number of images passed through the network at a time.

    Example:
        >>> InceptionFeatures(cache_dir="outputs/cache").titles.frechet
        'fid'
    """

    name = "inception"
    label = "FID"
    url = f"{RELEASE}/weights-inception-2015-12-05-6726825d.pth"
    published = SHA256
    titles = Titles("fid", "kid", "inception_score")
    dim = 2048
    resize = "bilinear to 299 x 299 as by TensorFlow 1"
    downloads = classifies = True

    def build(self, content: bytes) -> nn.Module:
        """Build torch-fidelity's network, which maps uint8 (B, 3, H, W) to features (B, 2048) and logits (B, 1008)."""
        # imported here, because the import is slow and other networks do not need it
        from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

        # torch-fidelity unpickles its input file, which could execute code: pass it a copy that contains only tensors
        copy = io.BytesIO()
        torch.save(as_tensors(content), copy)
        copy.seek(0)
        # keep the state of torch's generator: the constructor draws initial weights before it loads the file
        with torch.random.fork_rng(devices=[]):
            return FeatureExtractorInceptionV3(
                "inception", ["2048", "logits_unbiased"], feature_extractor_weights_path=copy
            )

    def found(self, images: Tensor) -> Features:
        """Compute features (B, 2048) and logits (B, 1008); see :meth:`LocalNetwork.found`."""
        return Features(*self.network(images))
