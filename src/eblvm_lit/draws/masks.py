"""Masks for inpainting: which pixels of an image are kept."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from eblvm_lit.core.ranges import Share
from eblvm_lit.data.base import ArrayDataModule, image_shape_of
from eblvm_lit.samplers.sample_noise import SampleNoise

__all__ = ["DrawnMask", "LeftHalf", "Mask"]


class Mask(ABC):
    """Decides which pixels are kept."""

    def prepare(self) -> None:  # noqa: B027 - most need no files
        """Load the files that the mask needs.

        Raises:
            DataError: If they are missing.
        """

    @abstractmethod
    def keep(self, image_shape: tuple[int, int, int], noise: SampleNoise) -> Tensor:
        """1 where a pixel is kept and 0 where it is missing, shape (B, C, H, W), float32, for each sample of noise."""


class LeftHalf(Mask):
    """The left half is missing, or, with some probability, the right half.

    Reference: Bao et al. 2021, code, inverts masks with probability 1/2.

    Args:
        inverted: That probability.

    Example:
        >>> LeftHalf().keep((1, 1, 4), SampleNoise(0, range(2))).tolist()
        [[[[0.0, 0.0, 1.0, 1.0]]], [[[0.0, 0.0, 1.0, 1.0]]]]
    """

    def __init__(self, *, inverted: Share = 0.0) -> None:
        self.inverted = inverted

    def keep(self, image_shape: tuple[int, int, int], noise: SampleNoise) -> Tensor:
        """See :meth:`Mask.keep`."""
        right = (torch.arange(image_shape[-1], device=noise.device) >= image_shape[-1] // 2).float()
        return _inverted(right, noise, self.inverted).expand(-1, *image_shape)


class DrawnMask(Mask):
    """The bright pixels of a random image of another data set are kept, or, with some probability, all others.

    The sample's noise chooses the image. Reference: Bao et al. 2021, code: MNIST digits, resized to the image's size,
    thresholded at 0.5, and inverted with probability 1/2.

    Args:
        data: The other data set, whose test images are used; colours are averaged.
        threshold: Pixels above it are kept, of images in [0, 1].
        inverted: Probability that they are missing instead.

    Example:
        >>> from eblvm_lit.data.digits import Digits
        >>> keep = DrawnMask(data=Digits()).keep((3, 16, 16), SampleNoise(0, range(2)))
        >>> keep.shape, keep.unique().tolist()
        (torch.Size([2, 3, 16, 16]), [0.0, 1.0])
    """

    def __init__(self, *, data: ArrayDataModule, threshold: float = 0.5, inverted: Share = 0.0) -> None:
        self.data = data
        self.threshold = threshold
        self.inverted = inverted

    def prepare(self) -> None:
        """Load the other data set."""
        self.data.setup()

    def keep(self, image_shape: tuple[int, int, int], noise: SampleNoise) -> Tensor:
        """See :meth:`Mask.keep`."""
        self.prepare()
        images = self.data.splits.test
        chosen = self.data.as_float(images[noise.integers(len(images)).cpu()]).view(-1, *image_shape_of(self.data))
        if getattr(self.data, "value_range", "unit") == "symmetric":
            chosen = (chosen + 1) / 2
        chosen = interpolate(
            chosen.mean(1, keepdim=True), size=image_shape[1:], mode="bilinear", antialias=True, align_corners=False
        )
        bright = (chosen > self.threshold).float().to(noise.device)
        return _inverted(bright, noise, self.inverted).expand(-1, *image_shape)


def _inverted(keep: Tensor, noise: SampleNoise, probability: float) -> Tensor:
    """The mask, or its opposite with this probability, for each sample."""
    # SampleNoise draws integers, so the probability is rounded to multiples of 2^-20
    flip = (noise.integers(2**20) < probability * 2**20).view(-1, 1, 1, 1)
    return torch.where(flip, 1 - keep, keep)
