"""A figure of a generator's images at latents between those of test images."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from pydantic import PositiveInt

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.draws.reconstructions import decode, encode, reconstructs
from eblvm_lit.figures.base import Picture
from eblvm_lit.figures.examples import labelled_examples
from eblvm_lit.figures.image_grid import image_grid
from eblvm_lit.figures.interpolation_grid import LINE, SQUARE
from eblvm_lit.methods.base import Method
from eblvm_lit.samplers.conditional import interpolate

__all__ = ["GeneratedInterpolation"]


class GeneratedInterpolation(Picture):
    r"""G(h) on a square that the latents of three test images span, and on lines between those of two.

    .. math:: h_{ij} = a + \tfrac{i}{n - 1} (b - a) + \tfrac{j}{n - 1} (c - a), \quad h_i = a + \tfrac{i}{n - 1} (b - a)

    a, b and c are the encoder's means, or the ends of chains towards the posterior. The images have the labels 0, 1
    and 4, and 1 and 7, if the data have labels.

    Args:
        n: Points along each side.
        n_lines: Number of lines.

    Example:
        >>> from types import SimpleNamespace
        >>> from torch import nn
        >>> from eblvm_lit.data.digits import Digits
        >>> from eblvm_lit.methods.parts import MethodParts
        >>> from eblvm_lit.posteriors.gaussian import LinearGaussianPosterior
        >>> data, q = Digits(), LinearGaussianPosterior(v_dim=64, h_dim=3)
        >>> data.setup()
        >>> method = SimpleNamespace(
        ...     parts=MethodParts(posterior=q, generator=nn.Linear(3, 64)), device="cpu", dtype=torch.float32)
        >>> figure = GeneratedInterpolation(n=3, n_lines=2).draw(method, data, torch.Generator())
        >>> [panel.get_title() for panel in figure.axes]
        ['between three images', 'between two images']
    """

    name = "interpolation"

    def __init__(self, *, n: PositiveInt = 10, n_lines: PositiveInt = 10) -> None:
        self.n = n
        self.n_lines = n_lines

    def applies(self, method: Method, data: ArrayDataModule) -> bool:
        """Whether the figure can be drawn: for images, and methods with an encoder and a generator."""
        return data.image_shape is not None and reconstructs(method.parts)

    def draw(self, method: Method, data: ArrayDataModule, generator: torch.Generator) -> Figure | None:
        """Draw it; see :meth:`Picture.draw`."""
        images = [labelled_examples(data, SQUARE)[0], *labelled_examples(data, LINE, self.n_lines)]
        latents = [interpolate(encode(method.parts, v), self.n) for v in images]
        square, *lines = (data.as_bytes(decode(method.parts.decoding, h)) for h in latents)
        panels = [("between three images", square), ("between two images", torch.cat(lines))]
        return image_grid([panels], data.image_shape, columns=self.n)
