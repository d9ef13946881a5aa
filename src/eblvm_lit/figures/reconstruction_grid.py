"""A figure of test images beside their reconstructions."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from pydantic import PositiveInt

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.draws.coding import reconstruct, reconstructs
from eblvm_lit.figures.base import Picture
from eblvm_lit.figures.image_grid import image_grid
from eblvm_lit.methods.base import Method

__all__ = ["Reconstructions"]


class Reconstructions(Picture):
    r"""A figure of test images v, each with its reconstruction :math:`G(\mu(v))` to the right of it.

    A reconstruction of another digit or face means that the latents have lost what distinguishes the image; a blurred
    one, that they keep too few details.

    Args:
        n: Number of pairs, of the first images of the test split.
        columns: Number of pairs in a row.

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
        >>> figure = Reconstructions(n=4, columns=2).draw(method, data, torch.Generator())
        >>> [panel.get_title() for panel in figure.axes]
        ['test images and their reconstructions, in pairs']
    """

    name = "reconstructions"

    def __init__(self, *, n: PositiveInt = 40, columns: PositiveInt = 5) -> None:
        self.n = n
        self.columns = columns

    def applies(self, method: Method, data: ArrayDataModule) -> bool:
        """Return whether the figure can be drawn: it needs images, and a method with an encoder and a generator."""
        return data.image_shape is not None and reconstructs(method.parts)

    def draw(self, method: Method, data: ArrayDataModule, generator: torch.Generator) -> Figure | None:
        """Draw the figure; see :meth:`Picture.draw`."""
        v = data.as_float(data.splits.test[: self.n]).to(device=method.device, dtype=method.dtype)
        pairs = data.as_bytes(torch.stack([v, reconstruct(method.parts, v)], dim=1).flatten(0, 1))
        panel = "test images and their reconstructions, in pairs", pairs
        return image_grid([[panel]], data.image_shape, columns=2 * self.columns, width=6.0)
