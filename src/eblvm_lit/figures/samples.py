"""Samples of a model, beside its data."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from pytorch_lightning import LightningModule
from torch import Tensor

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.errors import ConfigError
from eblvm_lit.figures.base import Picture, new_figure, plane
from eblvm_lit.figures.tiles import show_tiles
from eblvm_lit.samplers.gibbs import Gibbs

__all__ = ["Samples"]

DOTS = "#2b6cb0"


class Samples(Picture):
    """Gibbs samples beside as many training examples: dots in the plane, or images.

    Dots are draws of p(v|h) at the chains' last latents, images are E[v|h] there, as in Bao et al. 2020.

    Args:
        n: Number of images.
        n_points: Number of dots.
        n_steps: Gibbs sweeps.

    Raises:
        ConfigError: For a number below one.

    Example:
        >>> from eblvm_lit.data.toy import Checkerboard
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> method, data = LightningModule(), Checkerboard()
        >>> method.energy = GRBM(v_dim=2, h_dim=3)
        >>> data.setup()
        >>> figure = Samples(n_points=50, n_steps=5).draw(method, data, torch.Generator())
        >>> [panel.get_title() for panel in figure.axes]
        ['data', 'Gibbs samples, 5 sweeps']
    """

    name = "samples"

    def __init__(self, *, n: int = 64, n_points: int = 2000, n_steps: int = 1000) -> None:
        if n < 1 or n_points < 1:
            raise ConfigError(f"Samples need n >= 1 and n_points >= 1, not {n} and {n_points}.")
        self.n, self.n_points, self.sampler = n, n_points, Gibbs(n_steps=n_steps)

    def draw(self, method: LightningModule, data: ArrayDataModule, generator: torch.Generator) -> Figure | None:
        """Draw it; see :meth:`Picture.draw`. For images and data with a window, where Gibbs sampling fits."""
        energy = getattr(method, "energy", None)
        if not Gibbs.supports(energy) or (data.image_shape is None and data.bounds is None):
            return None
        images = data.image_shape is not None
        samples = self.sampler.sample(energy, self.n if images else self.n_points, generator, mean=images).cpu()
        shuffled = torch.randperm(len(data.splits.train), generator=generator, device=generator.device).cpu()
        examples = data.as_float(data.splits.train[shuffled[: len(samples)]])
        return self._images(examples, samples, data) if images else self._dots(examples, samples, data)

    def _titles(self) -> tuple[str, str]:
        return "data", f"Gibbs samples, {self.sampler.n_steps} sweeps"

    def _images(self, examples: Tensor, samples: Tensor, data: ArrayDataModule) -> Figure:
        _, height, width = data.image_shape
        figure = new_figure(7.6, 3.7 * height / width + 0.4)
        limits = float(examples.min()), float(examples.max())
        for panel, v, title in zip(figure.subplots(1, 2), (examples, samples), self._titles(), strict=True):
            show_tiles(panel, v, data.image_shape, limits, title)
        return figure

    def _dots(self, examples: Tensor, samples: Tensor, data: ArrayDataModule) -> Figure:
        figure = new_figure(7.6, 3.9)
        panels = plane(figure, data.bounds, self._titles())
        for panel, v in zip(panels, (examples, samples), strict=True):
            panel.scatter(v[:, 0], v[:, 1], s=5, color=DOTS, alpha=0.4, linewidths=0)
        figure.draw_without_rendering()  # panels of fixed aspect need two passes of the layout; saving is one
        return figure
