"""A figure of a model's samples beside training examples."""

from __future__ import annotations

from typing import Any, cast

import torch
from matplotlib.figure import Figure
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.energies.base import Energy
from eblvm_lit.figures.base import Picture, new_figure, plane
from eblvm_lit.figures.image_grid import image_grid
from eblvm_lit.figures.style import COLOURS
from eblvm_lit.methods.base import Method
from eblvm_lit.samplers.chain_samples import ChainSamples
from eblvm_lit.samplers.gibbs import Gibbs
from eblvm_lit.samplers.langevin import Langevin
from eblvm_lit.utils.progress import progress_bar

__all__ = ["Samples"]


class Samples(Picture):
    r"""Samples beside equally many training examples: dots in the plane, or images.

    Where p(h|v) and p(v|h) can be sampled, these are Gibbs samples: dots are draws of p(v|h) at the chains' last
    latents, images are E[v|h], as in Bao et al. 2020. For other two-dimensional models with real latents, v and h move
    together by Langevin dynamics,

    .. math:: (v, h) \leftarrow (v, h) - \tfrac a2 \nabla E(v, h) + \sqrt a\, \epsilon

    from v uniform in the data's window and h standard normal. Images of models whose conditionals cannot be sampled
    are drawn by the sampler alone; a sampler that is not for them alone draws all else, too.

    Args:
        n: Number of images.
        n_points: Number of dots.
        n_steps: Gibbs sweeps, or steps of Langevin dynamics.
        step_size: a. The default fits models that are smooth on a scale of 0.05: a / 0.05^2 is well below one.
        sampler: The chosen sampler; None: no figure of images where Gibbs sampling is not possible.
        deep_images: Whether images of models without known conditionals are drawn, which takes minutes.

    Example:
        >>> from types import SimpleNamespace
        >>> from eblvm_lit.data.toy import Checkerboard
        >>> from eblvm_lit.methods.parts import MethodParts
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> method, data = SimpleNamespace(parts=MethodParts(energy=GRBM(v_dim=2, h_dim=3))), Checkerboard()
        >>> data.setup()
        >>> figure = Samples(n_points=50, n_steps=5).draw(method, data, torch.Generator())
        >>> [panel.get_title() for panel in figure.axes]
        ['data', 'Gibbs samples, 5 sweeps']
    """

    name = "samples"

    def __init__(
        self,
        *,
        n: PositiveInt = 64,
        n_points: PositiveInt = 2000,
        n_steps: NonNegativeInt = 1000,
        step_size: PositiveFloat = 1e-3,
        sampler: ChainSamples | None = None,
        deep_images: bool = False,
    ) -> None:
        self.n = n
        self.n_points = n_points
        self.n_steps = n_steps
        self.gibbs = Gibbs(n_steps=n_steps)
        self.langevin = Langevin(n_steps=n_steps, step_size=step_size)
        self.sampler = sampler
        self.deep_images = deep_images

    def draw(self, method: Method, data: ArrayDataModule, generator: torch.Generator) -> Figure | None:
        """Draw it; see :meth:`Picture.draw`. For images and data with a window, where one of the samplers fits."""
        energy = method.parts.energy
        images = data.image_shape is not None
        if not images and data.bounds is None:
            return None
        if isinstance(energy, Energy) and self._uses_sampler(energy, images=images):
            samples = self._by_sampler(energy, method, data, self.n if images else self.n_points)
            title = f"{type(self.sampler.dynamics).__name__}, {self.sampler.dynamics.n_steps} steps"
        elif Gibbs.supports(energy):
            samples = self.gibbs.sample(energy, self.n if images else self.n_points, generator, mean=images)
            title = f"Gibbs samples, {self.n_steps} sweeps"
        elif not images and isinstance(energy, Energy) and energy.continuous:
            low, high = (torch.tensor(ends).to(next(energy.parameters())) for ends in zip(*data.bounds, strict=True))
            samples = self.langevin.sample(energy, self.n_points, generator, low=low, high=high)
            title = f"Langevin samples, {self.n_steps} steps"
        else:
            return None
        samples = samples.cpu()
        shuffled = torch.randperm(len(data.splits.train), generator=generator, device=generator.device).cpu()
        examples = data.as_float(data.splits.train[shuffled[: len(samples)]])
        panels = [("data", examples), (title, samples)]
        if images:
            limits = float(examples.min()), float(examples.max())
            return image_grid([panels], data.image_shape, limits=limits)
        figure = new_figure(7.6, 3.9)
        for axes, (_, v) in zip(plane(figure, data.bounds, ("data", title)), panels, strict=True):
            axes.scatter(v[:, 0], v[:, 1], s=5, color=COLOURS[0], alpha=0.4, linewidths=0)
        figure.draw_without_rendering()  # panels of fixed aspect need two passes of the layout, and saving does one
        return figure

    def _uses_sampler(self, energy: Energy, *, images: bool) -> bool:
        """Whether the sampler draws, and not Gibbs sweeps or plain Langevin dynamics."""
        if images and not Gibbs.supports(energy):
            return self.sampler is not None and self.deep_images
        return self.sampler is not None and not self.sampler.deep_images_only

    def _by_sampler(self, energy: Energy, method: Method, data: ArrayDataModule, n: int) -> Tensor:
        """Samples, shape (n, *event); their noise is a function of the run's seed."""
        sampler = cast(ChainSamples, self.sampler)
        options: dict[str, Any] = {"seed": method.seed, "posterior": method.parts.posterior}
        with progress_bar("samples", n * sampler.dynamics.n_steps) as on_step:
            return sampler.draw(
                energy, range(n), examples=data.splits.train, as_float=data.as_float, on_step=on_step, **options
            )
