"""A figure of a model's samples beside training examples."""

from __future__ import annotations

from typing import Any, cast

import torch
from matplotlib.figure import Figure
from torch import Tensor

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.energies.base import Energy
from eblvm_lit.errors import ConfigError
from eblvm_lit.figures.base import Picture, new_figure, plane
from eblvm_lit.figures.image_grid import image_grid
from eblvm_lit.figures.style import COLOURS
from eblvm_lit.methods.base import Method
from eblvm_lit.samplers.chain_samples import ChainSamples
from eblvm_lit.samplers.gibbs import Gibbs
from eblvm_lit.samplers.langevin import Langevin
from eblvm_lit.utils.progress import progress_bar

__all__ = ["Samples"]

ANIMATED = 25  # samples that an animation shows
N_FRAMES = 40


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
        gif: Whether ``samples.gif`` also shows the first 25 of the sampler's images as they move.

    Raises:
        ConfigError: For ``gif`` without ``deep_images``.

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
        n: int = 64,
        n_points: int = 2000,
        n_steps: int = 1000,
        step_size: float = 1e-3,
        sampler: ChainSamples | None = None,
        deep_images: bool = False,
        gif: bool = False,
    ) -> None:
        if gif and (sampler is None or not deep_images):
            raise ConfigError(
                "samples.gif=true shows images of deep models, and this run draws none: add "
                "figures@callbacks.figures.figures=annealed, with a deep model of images."
            )
        self.n, self.n_points, self.n_steps, self.gibbs = n, n_points, n_steps, Gibbs(n_steps=n_steps)
        self.langevin, self.gif = Langevin(n_steps=n_steps, step_size=step_size), gif
        self.sampler, self.deep_images = sampler, deep_images

    def draw(self, method: Method, data: ArrayDataModule, generator: torch.Generator) -> Figure | None:
        """Draw it; see :meth:`Picture.draw`. For images and data with a window, where one of the samplers fits."""
        energy, images = method.parts.energy, data.image_shape is not None
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

    def animate(self, method: Method, data: ArrayDataModule, generator: torch.Generator) -> list[Figure]:
        """Frames of the sampler's images at equal numbers of steps, if ``gif`` is true; the last shows the samples."""
        if not self.gif or data.image_shape is None:
            return []
        energy, posterior, examples = method.parts.energy, method.parts.posterior, data.splits.train
        if self.sampler is None or self.sampler.kind_for(energy, posterior, examples) is None:
            return []
        limits = [float(end) for end in torch.aminmax(data.as_float(examples[: self.n]))]
        n_steps, temperatures = self.sampler.dynamics.n_steps, getattr(self.sampler.dynamics, "temperatures", None)
        shown = {round(k * (n_steps - 1) / (N_FRAMES - 2)) for k in range(N_FRAMES - 1)}
        options = {"seed": method.seed, "posterior": posterior, "examples": examples, "as_float": data.as_float}
        frames, samples = [], range(min(self.n, ANIMATED))
        with progress_bar("annealing", n_steps) as on_step:
            for step, v in enumerate(self.sampler.trajectory(energy, samples, **options)):
                on_step(1)
                if step in shown or step == n_steps:
                    state = ", denoised" if step == n_steps else ""
                    if temperatures is not None and step < n_steps:
                        state = f", T = {float(temperatures[step]):.3g}"
                    panel = f"step {min(step + 1, n_steps):,} of {n_steps:,}{state}", v
                    frames.append(image_grid([[panel]], data.image_shape, limits=tuple(limits)))
        return frames

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
