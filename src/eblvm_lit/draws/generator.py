"""Samples drawn by a generator from latents of the prior."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from eblvm_lit.core.eval_mode import eval_mode
from eblvm_lit.core.functional import bind, buffers_of, clone_buffers, plain_autograd
from eblvm_lit.data.base import ArrayDataModule, image_shape_of
from eblvm_lit.draws.base import Draws, ImageSource
from eblvm_lit.energies.latent_prior import LatentPriorEnergy
from eblvm_lit.methods.base import Method
from eblvm_lit.samplers.langevin import Langevin
from eblvm_lit.samplers.latent_chains import prior_energy, run_chain
from eblvm_lit.samplers.sample_noise import SampleNoise

__all__ = ["GeneratedImages", "GeneratorDraws"]


class GeneratedImages(ImageSource):
    """A source of images G(h) from a generator G, with latents h ~ p(h).

    h is drawn from N(0, I), or from a learnt prior by Langevin steps that start at samples of N(0, I).

    Batch normalisation uses statistics that the method has collected for h ~ N(0, I), so that image i does not depend
    on its batch. The authors' code of BiDVL uses the statistics of each batch of 100 images instead. The generator's
    running statistics are not updated.

    Args:
        batch_statistics: Whether batch normalisation uses the statistics of the batch, as in training and in the
            authors' code. Image i then depends on its batch, and only whole batches are generated.
        batch_size: The number of images in one pass.
        langevin: The Langevin steps that sample a learnt prior of latents; used only for a model that has one.

    Example:
        >>> from types import SimpleNamespace
        >>> from torch import nn
        >>> from eblvm_lit.data.digits import Digits
        >>> from eblvm_lit.methods.parts import MethodParts
        >>> parts = MethodParts(generator=nn.Linear(3, 64))
        >>> method = SimpleNamespace(parts=parts, seed=0, h_dim=3, device="cpu", dtype=torch.float32)
        >>> GeneratedImages().images(method, Digits(), 6).shape
        torch.Size([6, 1, 8, 8])
    """

    needs = "images, and a method with a generator"

    def __init__(
        self, *, batch_statistics: bool = False, batch_size: PositiveInt = 100, langevin: Langevin | None = None
    ) -> None:
        self.batch_statistics = batch_statistics
        self.batch_size = batch_size
        self.langevin = langevin

    def supports(self, method: Method, data: ArrayDataModule) -> bool:
        """Return whether the data are images and the method has a generator that can be sampled."""
        return data.image_shape is not None and self.draws(method) is not None

    def draws(self, method: Method) -> Draws | None:
        """Return the object that draws images with the method's generator, or None if the method has no generator.

        The result is also None if the model has a learnt prior and no Langevin steps are given to sample it.
        """
        learnt = isinstance(method.parts.energy, LatentPriorEnergy)
        lacking = method.parts.decoding is None or (learnt and self.langevin is None)
        return None if lacking else GeneratorDraws(self, method)

    def images(self, method: Method, data: ArrayDataModule, n: int) -> Tensor:
        """Return the first n images; see :meth:`ImageSource.images`."""
        passes = self.passes(method, n, method.seed)
        return torch.cat([data.as_bytes(v).cpu().view(-1, *image_shape_of(data)) for v in passes])[:n]

    @torch.no_grad()
    def passes(self, method: Method, n: int, seed: int) -> list[Tensor]:
        """Generate images G(h) for at least n latents h; return one tensor (batch_size, *event) per forward pass.

        Args:
            method: A method with a generator.
            n: The number of latents, which is rounded up to whole batches.
            seed: The seed of the latents; latent i is a function of the seed and of i.
        """
        own = cast(nn.Module, method.parts.decoding)
        made = []
        statistics = {} if self.batch_statistics else method.parts.prior_statistics()
        with eval_mode(own):
            for first in range(0, n, self.batch_size):
                noise = SampleNoise(seed, range(first, first + self.batch_size))
                h = self.draw_latents(method, noise).to(device=method.device, dtype=method.dtype)
                view = bind(own, {**clone_buffers(buffers_of(own)), **statistics}).train(self.batch_statistics)
                made.append(view(h))
        return made

    def draw_latents(self, method: Method, noise: SampleNoise) -> Tensor:
        """Draw latents, shape (B, H), from N(0, I), or from a learnt prior by Langevin steps started from N(0, I)."""
        energy = method.parts.energy
        if not isinstance(energy, LatentPriorEnergy):
            return noise((cast(Any, method).h_dim,))
        langevin = cast(Langevin, self.langevin)
        drawn = noise((1 + langevin.n_steps, energy.h_dim)).transpose(0, 1).to(next(energy.parameters()))
        with plain_autograd():
            return run_chain(langevin, prior_energy(energy), {"start": drawn[0], "steps": drawn[1:]})


class GeneratorDraws(Draws):
    """The images G(h) of one method's generator G at random latents h; each image is the mean of v given h.

    Args:
        images: The settings with which the generator draws.
        method: The method.
    """

    title = "generator"

    def __init__(self, images: GeneratedImages, method: Method) -> None:
        self.images = images
        self.method = method

    def of_means(self) -> Draws:
        """Return this object unchanged, because its images G(h) already are means of v given h."""
        return self

    def draw(self, n: int, *, seed: int, on_step: Callable[[int], None] | None = None) -> Tensor:
        """Draw the first n samples; see :meth:`Draws.draw`."""
        return torch.cat(self.images.passes(self.method, n, seed))[:n]
