"""A figure of the weights of a GRBM's latent units."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from pydantic import PositiveInt

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.energies.binary_layers import BinaryEnergy
from eblvm_lit.energies.grbm import GaussianBernoulliEnergy
from eblvm_lit.figures.base import Picture
from eblvm_lit.figures.image_grid import image_grid
from eblvm_lit.methods.base import Method

__all__ = ["Filters"]


class Filters(Picture):
    """A figure of the columns of the coupling of v and h as images, each on its own grey scale; medium grey is zero.

    A filter is, up to a factor, what a latent adds to the mean of v when it is 1, or to its logits if v is
    binary; of a DBM they are those of the first layer. Filters with strokes or parts of
    objects show that the latents have learned something; filters that look like noise show that they have not been
    trained long enough, or are not used.

    Args:
        n: Number of columns; the first ones are drawn.

    Example:
        >>> from types import SimpleNamespace
        >>> from eblvm_lit.data.digits import Digits
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.methods.parts import MethodParts
        >>> method = SimpleNamespace(parts=MethodParts(energy=GRBM(v_dim=64, h_dim=100)))
        >>> len(Filters().draw(method, Digits(), torch.Generator()).axes)
        1
    """

    name = "filters"

    def __init__(self, *, n: PositiveInt = 64) -> None:
        self.n = n

    @torch.no_grad()
    def draw(self, method: Method, data: ArrayDataModule, generator: torch.Generator) -> Figure | None:
        """Draw the figure if the model is a GRBM, an RBM or a DBM and the data are images; see :meth:`Picture.draw`."""
        energy = method.parts.energy
        if data.image_shape is None or not isinstance(energy, GaussianBernoulliEnergy | BinaryEnergy):
            return None
        filters = energy.coupling().T[: self.n]
        # a unit whose weights are all zero is drawn grey: the lower bound avoids 0 / 0
        extremes = filters.abs().amax(1, keepdim=True).clamp_min(torch.finfo(filters.dtype).tiny)
        panel = f"filters, {len(filters)} of {energy.h_dim}", filters / extremes
        return image_grid([[panel]], data.image_shape, limits=(-1.0, 1.0))
