"""Images that take no download: what they show costs no time."""

from __future__ import annotations

import torch

from eblvm_lit.data.images import Images, SmallImageDataModule

__all__ = ["RandomGreyImages", "RandomImages"]


class RandomImages(SmallImageDataModule):
    """Random bytes in the shape of CIFAR10's images, a hundred batches of them."""

    def read(self) -> Images:
        generator = torch.Generator().manual_seed(0)
        shape = (100 * self.batch_size + self.val_size, *self.event_shape)
        pixels = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
        return Images(pixels, pixels[: self.val_size])


class RandomGreyImages(RandomImages):
    """The same in the shape of MNIST's images at 32 x 32 pixels."""

    channels = 1
