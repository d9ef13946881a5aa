"""The DINOv2 network, whose features distinguish images that Inception's features confuse."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from eblvm_lit.evaluation.features.base import Features, Titles
from eblvm_lit.evaluation.features.local_network import LocalNetwork, as_tensors
from eblvm_lit.networks.vision_transformer import VisionTransformer

__all__ = ["DINOv2Features"]

URL = "https://dl.fbaipublicfiles.com/dinov2/dinov2_vits14/dinov2_vits14_pretrain.pth"
SHA256 = "b938bf1bc15cd2ec0feacfe3a1bb553fe8ea9ca46a7e1d8d00217f29aef60cd9"
SIDE = 224
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


class DINOv2Features(LocalNetwork):
    """The class token of the vision transformer DINOv2 as features; the published small network has 384 features.

    Images are resized to 224 x 224 and normalised as in torch-fidelity; grey images become colour by repeating the
    channel. The network is built from its file of weights only: no code is downloaded. The criteria are named
    ``fd_dinov2``, ``precision_dinov2`` and so on. Reference: Oquab et al. 2023, arXiv 2304.07193; Stein et al. 2023,
    arXiv 2306.04675, propose it for the evaluation of samples.

    Args:
        cache_dir: The folder that should contain the weights, one file of 88 MB, which is not downloaded.
        weights: A file with other weights, for example of a larger network; None for the published ones.
        sha256: The SHA-256 digest that the file must have; None for other weights.
        batch_size: Number of images passed through the network at a time.

    Example:
        >>> DINOv2Features(cache_dir="outputs/cache").titles.of("recall")
        'recall_dinov2'
    """

    name = "dinov2"
    label = "DINOv2"
    url = URL
    published = SHA256
    titles = Titles("fd_dinov2", "kd_dinov2", "dinov2_score", "_dinov2")
    resize = "bilinear to 224 x 224 as by TensorFlow 1"

    def build(self, content: bytes) -> nn.Module:
        """Build the vision transformer; see :meth:`LocalNetwork.build`."""
        network = VisionTransformer.of_state(as_tensors(content))
        self.dim = network.dim
        return network

    def found(self, images: Tensor) -> Features:
        """Compute features (B, D), without logits; see :meth:`LocalNetwork.found`."""
        from torch_fidelity.interpolate_compat_tensorflow import interpolate_bilinear_2d_like_tensorflow1x

        x = interpolate_bilinear_2d_like_tensorflow1x(images.float(), size=(SIDE, SIDE), align_corners=False) / 255
        mean, std = (torch.tensor(values, device=x.device).view(3, 1, 1) for values in (MEAN, STD))
        return Features(self.network((x - mean) / std), None)
