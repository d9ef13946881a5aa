"""Masks for inpainting, which say which pixels of an image are kept."""

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
    """The base class of masks, which decide for each sample which pixels are kept."""

    def prepare(self) -> None:  # noqa: B027 - most need no files
        """Load the files that the mask needs.

        Raises:
            DataError: If they are missing.
        """

    @abstractmethod
    def keep(self, image_shape: tuple[int, int, int], noise: SampleNoise) -> Tensor:
        """Return a mask for each sample: 1 where a pixel is kept, and 0 where it is missing.

        Args:
            image_shape: The channels, height and width of an image.
            noise: The noise of B samples, for masks that are random.

        Returns:
            The masks, float32, shape (B, C, H, W).
        """


class LeftHalf(Mask):
    """The mask that removes the left half of an image or, with a given probability, the right half.

    Reference: Bao et al. 2021, code, which inverts masks with probability 1/2.

    Args:
        inverted: The probability that the right half is missing.

    Example:
        >>> LeftHalf().keep((1, 1, 4), SampleNoise(0, range(2))).tolist()
        [[[[0.0, 0.0, 1.0, 1.0]]], [[[0.0, 0.0, 1.0, 1.0]]]]
    """

    def __init__(self, *, inverted: Share = 0.0) -> None:
        self.inverted = inverted

    def keep(self, image_shape: tuple[int, int, int], noise: SampleNoise) -> Tensor:
        """Return a mask for each sample; see :meth:`Mask.keep`."""
        right = (torch.arange(image_shape[-1], device=noise.device) >= image_shape[-1] // 2).float()
        return _inverted(right, noise, self.inverted).expand(-1, *image_shape)


class DrawnMask(Mask):
    """The mask that keeps pixels where a random image of another data set is bright or, if inverted, where it is dark.

    Each sample's noise chooses its image. Reference: Bao et al. 2021, code, which takes MNIST digits, resizes them to
    the image's size, thresholds them at 0.5, and inverts them with probability 1/2.

    Args:
        data: The other data set, whose test images are used; their colour channels are averaged.
        threshold: The value in [0, 1] above which a pixel is bright.
        inverted: The probability that the bright pixels are missing and the others kept.

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
        """Load the data set whose images serve as masks."""
        self.data.setup()

    def keep(self, image_shape: tuple[int, int, int], noise: SampleNoise) -> Tensor:
        """Return a mask for each sample; see :meth:`Mask.keep`."""
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
    """Invert the mask of each sample with the given probability."""
    # SampleNoise draws integers, so the probability is rounded to a multiple of 2^-20.
    flip = (noise.integers(2**20) < probability * 2**20).view(-1, 1, 1, 1)
    return torch.where(flip, 1 - keep, keep)
