"""A figure of a model's samples beside training examples."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from pydantic import PositiveInt

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.draws.base import Draws
from eblvm_lit.draws.chains import ChainDraws
from eblvm_lit.draws.choice import draws_of
from eblvm_lit.draws.generator import GeneratedImages
from eblvm_lit.energies.noise_conditional import knows_every_level
from eblvm_lit.figures.base import Picture, new_figure, plane, window_in_units
from eblvm_lit.figures.image_grid import image_grid
from eblvm_lit.figures.style import COLOURS
from eblvm_lit.methods.base import Method
from eblvm_lit.samplers.dynamics import Dynamics
from eblvm_lit.samplers.gibbs import Gibbs
from eblvm_lit.samplers.sampler import Sampler
from eblvm_lit.utils.progress import progress_bar

__all__ = ["Samples"]


class Samples(Picture):
    """A figure of samples beside the same number of training examples, as images or as points in the plane.

    Compare the two panels: are samples as sharp and as varied as the data? Samples that are all alike, or noise, may be
    the fault of the sampler as well as of the model: compare two samplers before you judge the model.

    The samples are drawn with the run's seed, in the way that :func:`~eblvm_lit.draws.choice.draws_of` chooses.
    With Gibbs sampling, dots are samples of p(v|h) at the chains' last latents, and images are the means E[v|h], as in
    Bao et al. 2020.

    Args:
        n: Number of images.
        n_points: Number of dots.
        sampler: The run's sampler.
        images: The source of a generator's images, for methods with a generator.
        deep_images: Whether to draw images also for models with neither a generator nor a tractable p(v|h), whose
            chains take minutes.

    Example:
        >>> from types import SimpleNamespace
        >>> from eblvm_lit.data.toy import Checkerboard
        >>> from eblvm_lit.methods.parts import MethodParts
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> parts, data = MethodParts(energy=GRBM(v_dim=2, h_dim=3)), Checkerboard()
        >>> data.setup()
        >>> method = SimpleNamespace(parts=parts, seed=0, device="cpu")
        >>> figure = Samples(n_points=50, sampler=Gibbs(n_steps=5)).draw(method, data, torch.Generator())
        >>> [panel.get_title() for panel in figure.axes]
        ['data', 'Gibbs samples, 5 sweeps']
    """

    name = "samples"

    def __init__(
        self,
        *,
        n: PositiveInt = 64,
        n_points: PositiveInt = 2000,
        sampler: Sampler | Dynamics | None = None,
        images: GeneratedImages | None = None,
        deep_images: bool = False,
    ) -> None:
        self.n = n
        self.n_points = n_points
        self.sampler = sampler
        self.images = images
        self.deep_images = deep_images

    def draw(self, method: Method, data: ArrayDataModule, generator: torch.Generator) -> Figure | None:
        """Draw the figure if the data are images or have a window; see :meth:`Picture.draw`."""
        images = data.image_shape is not None
        draws = self._draws(method, data)
        if draws is None or (not images and data.window is None):
            return None
        n = self.n if images else self.n_points
        with progress_bar("samples", n * draws.n_steps, visible=draws.n_steps > 0) as on_step:
            samples = draws.draw(n, seed=method.seed, on_step=on_step).cpu()
        shuffled = torch.randperm(len(data.splits.train), generator=generator, device=generator.device).cpu()
        examples = data.as_float(data.splits.train[shuffled[: len(samples)]])
        panels = [("data", examples), (draws.title, samples)]
        if images:
            limits = float(examples.min()), float(examples.max())
            return image_grid([panels], data.image_shape, limits=limits)
        figure = new_figure(7.6, 3.9)
        shown = plane(figure, window_in_units(data), ("data", draws.title), data.column_names)
        for axes, (_, v) in zip(shown, panels, strict=True):
            axes.scatter(*data.in_units(v).T, s=5, color=COLOURS[0], alpha=0.4, linewidths=0)
        # panels with a fixed aspect need two passes of the layout, and saving makes only one pass
        figure.draw_without_rendering()
        return figure

    def _draws(self, method: Method, data: ArrayDataModule) -> Draws | None:
        """Return the object that draws the samples; None if ``deep_images`` is false and chains would take minutes.

        Gibbs chains and the probability flow of noise-conditional models take seconds. Images are the conditional means
        E[v|h] if the sampler can compute them.
        """
        draws = draws_of(method, data, self.sampler, generator=self.images)
        if data.image_shape is None or draws is None:
            return draws
        energy = method.parts.energy
        quick = Gibbs.supports(energy) or knows_every_level(energy)
        takes_minutes = isinstance(draws, ChainDraws) and not quick
        return None if takes_minutes and not self.deep_images else draws.of_means() or draws
