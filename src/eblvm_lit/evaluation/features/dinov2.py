"""The DINOv2 network, whose features tell images apart that Inception's do not."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.errors import ConfigError
from eblvm_lit.evaluation.features.base import FeatureExtractor, Features, Titles
from eblvm_lit.evaluation.features.local_weights import as_tensors, find_local, read_checked
from eblvm_lit.networks.vision_transformer import VisionTransformer

__all__ = ["DINOv2Features"]

URL = "https://dl.fbaipublicfiles.com/dinov2/dinov2_vits14/dinov2_vits14_pretrain.pth"
SHA256 = "b938bf1bc15cd2ec0feacfe3a1bb553fe8ea9ca46a7e1d8d00217f29aef60cd9"
SIDE = 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class DINOv2Features(FeatureExtractor):
    """The class token of DINOv2, of 384 features with the published small network.

    Images are resized to 224 x 224 and normalised as torch-fidelity does it; grey is repeated. The network is built of
    the weights alone: no code is fetched. The criteria are ``fd_dinov2``, ``precision_dinov2`` and so on. Reference:
    Oquab et al. 2023, arXiv 2304.07193; as a judge of samples Stein et al. 2023, arXiv 2306.04675.

    Args:
        cache_dir: Where the weights are looked for: one file of 88 MB, which is not downloaded.
        weights: A file with other weights, such as of a larger network; None for the published ones.
        sha256: The SHA-256 that the file must have; None for other weights.
        batch_size: Images at a time.

    Raises:
        ConfigError: For fewer than one image at a time.

    Example:
        >>> DINOv2Features(cache_dir="outputs/cache").titles.of("recall")
        'recall_dinov2'
    """

    name = "dinov2"
    titles = Titles("fd_dinov2", "kd_dinov2", "dinov2_score", "_dinov2")
    resize = "bilinear to 224 x 224 as by TensorFlow 1"
    classifies = False

    def __init__(
        self, *, cache_dir: str, weights: str | None = None, sha256: str | None = SHA256, batch_size: int = 50
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"DINOv2 needs batch_size >= 1, not {batch_size}.")
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
        path = find_local(self.weights, self.cache_dir, URL, "DINOv2")
        otherwise = "put the right one there, or set sha256=null for weights of your own"
        content, digest = read_checked(path, self.sha256, "the published file of DINOv2's weights", otherwise)
        try:
            network = VisionTransformer.of_state(as_tensors(content, path))
        except (RuntimeError, KeyError, AttributeError, ValueError, IndexError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(f"{path} holds weights of another network than DINOv2's ({reason}).") from error
        self._network, self.dim = network.float().requires_grad_(False).eval(), network.dim
        self._fingerprint = digest[:16]

    @property
    def fingerprint(self) -> str:
        """A digest of the file of weights."""
        return self._fingerprint

    @torch.no_grad()
    def extract(self, images: Tensor) -> Features:
        """Features (B, D); see :meth:`FeatureExtractor.extract`."""
        from torch_fidelity.interpolate_compat_tensorflow import interpolate_bilinear_2d_like_tensorflow1x

        network = cast(nn.Module, self._network).to(images.device)
        with torch.autocast(images.device.type, enabled=False):
            x = images.expand(-1, 3, -1, -1).float()
            x = interpolate_bilinear_2d_like_tensorflow1x(x, size=(SIDE, SIDE), align_corners=False) / 255
            mean, std = (torch.tensor(values, device=x.device).view(3, 1, 1) for values in (MEAN, STD))
            return Features(network((x - mean) / std), None)
