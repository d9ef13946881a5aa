"""A figure of images with missing pixels, and of the model's completions."""

from __future__ import annotations

from typing import Literal

import torch
from matplotlib.figure import Figure
from pydantic import PositiveInt

from eblvm_lit.core.seeding import derive_seed
from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.draws.choice import FittingSampler
from eblvm_lit.draws.coding import encode
from eblvm_lit.draws.masks import Mask
from eblvm_lit.energies.noise_conditional import knows_every_level
from eblvm_lit.figures.base import Picture
from eblvm_lit.figures.examples import encodes_images
from eblvm_lit.figures.image_grid import image_grid, label_rows
from eblvm_lit.methods.base import Method
from eblvm_lit.samplers.conditional import can_inpaint, inpaint
from eblvm_lit.samplers.sample_noise import SampleNoise
from eblvm_lit.samplers.sampler import Sampler
from eblvm_lit.utils.progress import progress_bar

__all__ = ["Inpainting"]

GREY = 128  # grey value of missing pixels


class Inpainting(Picture):
    """A figure with labelled rows: test images, their known pixels, and the model's completions.

    A good completion continues the strokes at the edge of the known pixels, and the completions of one image differ
    where the known pixels leave a choice.

    Reference: Bao et al. 2021, code; Li et al. 2019.

    Args:
        sampler: The sampler that draws the missing pixels. For a model of every noise level, a
            :class:`~eblvm_lit.draws.choice.FittingSampler` chooses the probability flow.
        mask: The mask that decides which pixels are known.
        n: Number of images.
        n_completions: Number of completions of each image.
        latents: How the latents are chosen: ``drawn``, sampled with the missing pixels, given only the known ones; or
            ``posterior``, fixed at the posterior mean of the whole image or, without a posterior, at the encoder's
            output for it.

    Example:
        >>> from types import SimpleNamespace
        >>> from eblvm_lit.data.digits import Digits
        >>> from eblvm_lit.methods.parts import MethodParts
        >>> from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
        >>> from eblvm_lit.samplers.annealed_langevin import AnnealedLangevin
        >>> from eblvm_lit.draws.masks import LeftHalf
        >>> data, parts = Digits(), MethodParts(energy=GaussianLatentModel(v_dim=64, h_dim=3))
        >>> method = SimpleNamespace(parts=parts, seed=0)
        >>> data.setup()
        >>> short = Sampler(dynamics=AnnealedLangevin(n_hot=0, n_falling=3, n_cold=0))
        >>> figure = Inpainting(sampler=short, mask=LeftHalf(), n=3).draw(method, data, torch.Generator())
        >>> figure.axes[0].images[0].get_array().shape  # six rows of three images
        (53, 26)
    """

    def __init__(
        self,
        *,
        sampler: Sampler,
        mask: Mask,
        n: PositiveInt = 10,
        n_completions: PositiveInt = 4,
        latents: Literal["drawn", "posterior"] = "drawn",
    ) -> None:
        self.sampler = sampler
        self.mask = mask
        self.n = n
        self.n_completions = n_completions
        self.latents = latents
        self.name = "inpainting" if latents == "drawn" else "inpainting_posterior"

    def prepare(self) -> None:
        """Check that all files needed by the mask exist."""
        self.mask.prepare()

    def applies(self, method: Method, data: ArrayDataModule) -> bool:
        """Return whether the figure can be drawn: it needs images, and a model with F(v) or real-valued latents.

        With ``latents=posterior`` it also needs an encoder or a posterior, and a model of one noise level, because no
        chain that passes through all levels can keep the latents of one.
        """
        fixed = encodes_images(method, data) and not knows_every_level(method.parts.energy)
        encodes = self.latents != "posterior" or fixed
        return data.image_shape is not None and can_inpaint(method.parts.energy) and encodes

    def draw(self, method: Method, data: ArrayDataModule, generator: torch.Generator) -> Figure | None:
        """Draw the figure; see :meth:`Picture.draw`."""
        v = data.as_float(data.splits.test[: self.n])
        seed = derive_seed(method.seed, self.name)
        keep = self.mask.keep(data.image_shape, SampleNoise(derive_seed(seed, "mask"), range(len(v))))
        # repeat the batch of images, so that the first completions of all images come before the second completions
        times = (self.n_completions, *[1] * (v.ndim - 1))
        given = v.repeat(times), keep.reshape(v.shape).repeat(times)
        h = None
        if self.latents == "posterior":
            h = encode(method.parts, v).repeat(self.n_completions, 1)
        sampler = self.sampler
        if isinstance(sampler, FittingSampler) and knows_every_level(method.parts.energy):
            sampler = sampler.fitting(method.parts.energy, images=True)
        with progress_bar("inpainting", len(given[0]) * sampler.dynamics.n_steps) as on_step:
            full = inpaint(
                sampler,
                method.parts.energy,
                *given,
                seed=seed,
                h=h,
                posterior=method.parts.posterior,
                on_step=on_step,
            )
        pixels = data.as_bytes(v).view(-1, *data.image_shape)
        keep = keep.bool()
        known = torch.where(keep, pixels, torch.full_like(pixels, GREY))
        board = torch.cat([pixels, known, data.as_bytes(full).view(-1, *data.image_shape).cpu()])
        figure = image_grid([[("", board)]], data.image_shape, columns=len(v), width=0.6 * len(v))
        numbers = range(1, self.n_completions + 1)
        label_rows(
            figure.axes[0], ["image", "known pixels", *(f"completion {i}" for i in numbers)], data.image_shape[1]
        )
        return figure
