"""Which pixels an image keeps."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from eblvm_lit.errors import ConfigError
from eblvm_lit.samplers.sample_noise import SampleNoise

__all__ = ["LeftHalf", "Mask"]


class Mask(ABC):
    """Says pixel by pixel what is kept."""

    @abstractmethod
    def keep(self, image_shape: tuple[int, int, int], noise: SampleNoise) -> Tensor:
        """1 where a pixel is kept and 0 where it is missing, shape (B, C, H, W), float32, for each sample of noise."""


class LeftHalf(Mask):
    """The left half is missing; or the right one, for each image with some probability by its own noise.

    Reference: Bao et al. 2021, code, inverts masks with probability 1/2.

    Args:
        inverted: That probability.

    Raises:
        ConfigError: For a number that is no probability.

    Example:
        >>> LeftHalf().keep((1, 1, 4), SampleNoise(0, range(2))).tolist()
        [[[[0.0, 0.0, 1.0, 1.0]]], [[[0.0, 0.0, 1.0, 1.0]]]]
    """

    def __init__(self, *, inverted: float = 0.0) -> None:
        if not 0 <= inverted <= 1:
            raise ConfigError(f"A mask is inverted with a probability in [0, 1], not {inverted}.")
        self.inverted = inverted

    def keep(self, image_shape: tuple[int, int, int], noise: SampleNoise) -> Tensor:
        """See :meth:`Mask.keep`."""
        right = (torch.arange(image_shape[-1], device=noise.device) >= image_shape[-1] // 2).float()
        # the probability to 2^-20: integers are all the uniform numbers that samples have
        flip = (noise.integers(2**20) < self.inverted * 2**20).view(-1, 1, 1, 1)
        return torch.where(flip, 1 - right, right).expand(-1, *image_shape)
