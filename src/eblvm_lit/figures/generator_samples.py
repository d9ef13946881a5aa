"""A figure of a generator's images beside training images."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from pydantic import PositiveInt

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.draws.base import ImageSource
from eblvm_lit.figures.base import Picture
from eblvm_lit.figures.image_grid import image_grid
from eblvm_lit.methods.base import Method

__all__ = ["GeneratedSamples"]


class GeneratedSamples(Picture):
    """Images of a generator beside equally many training images.

    Args:
        images: The source of the images.
        n: Number of images.

    Example:
        >>> from types import SimpleNamespace
        >>> from torch import nn
        >>> from eblvm_lit.data.digits import Digits
        >>> from eblvm_lit.methods.parts import MethodParts
        >>> from eblvm_lit.draws.generator import GeneratedImages
        >>> data, parts = Digits(), MethodParts(generator=nn.Linear(3, 64))
        >>> data.setup()
        >>> method = SimpleNamespace(parts=parts, seed=0, h_dim=3, device="cpu", dtype=torch.float32)
        >>> figure = GeneratedSamples(images=GeneratedImages(), n=4).draw(method, data, torch.Generator())
        >>> [panel.get_title() for panel in figure.axes]
        ['data', 'generator']
    """

    name = "samples"

    def __init__(self, *, images: ImageSource, n: PositiveInt = 64) -> None:
        self.images = images
        self.n = n

    def applies(self, method: Method, data: ArrayDataModule) -> bool:
        """Whether the figure can be drawn: for images, and methods with a generator."""
        return self.images.supports(method, data)

    def draw(self, method: Method, data: ArrayDataModule, generator: torch.Generator) -> Figure | None:
        """Draw it; see :meth:`Picture.draw`."""
        rows = torch.randperm(len(data.splits.train), generator=generator, device=generator.device).cpu()[: self.n]
        examples = data.as_bytes(data.as_float(data.splits.train[rows]))
        panels = [("data", examples), ("generator", self.images.images(method, data, self.n))]
        return image_grid([panels], data.image_shape)
