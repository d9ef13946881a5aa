"""Random images that replace data sets in benchmarks, so that no download is needed.

The time of an iteration does not depend on the content of the images.
"""

from __future__ import annotations

import torch

from eblvm_lit.data.images import Images, SmallImageDataModule

__all__ = ["RandomGreyImages", "RandomImages"]


class RandomImages(SmallImageDataModule):
    """A hundred batches of random bytes in the shape of CIFAR10's images."""

    def read(self) -> Images:
        generator = torch.Generator().manual_seed(0)
        shape = (100 * self.batch_size + self.val_size, *self.event_shape)
        pixels = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
        return Images(pixels, pixels[: self.val_size])


class RandomGreyImages(RandomImages):
    """A hundred batches of random bytes in the shape of MNIST's images at 32 x 32 pixels."""

    channels = 1
