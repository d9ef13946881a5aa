"""A figure of samples of p(v|h) at the latents of test images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.figure import Figure
from pydantic import NonNegativeInt, PositiveInt

from eblvm_lit.core.seeding import derive_seed
from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.draws.coding import encode
from eblvm_lit.energies.noise_conditional import knows_every_level
from eblvm_lit.figures.base import Picture
from eblvm_lit.figures.examples import encodes_images, labelled_examples
from eblvm_lit.figures.image_grid import image_grid
from eblvm_lit.methods.base import Method
from eblvm_lit.samplers.conditional import draw_visible
from eblvm_lit.samplers.sampler import Sampler
from eblvm_lit.utils.progress import progress_bar

__all__ = ["Conditional"]


class Conditional(Picture):
    r"""A figure of test images and, below each image, samples of p(v|h) at the image's latent h.

    The latent is the mean of the posterior at the image or, without a posterior, the output of the encoder.

    If the samples resemble their image, the latent says much about v; if all four groups look alike, it says little.

    .. math:: v \sim p(v|h), \quad h = E_q[h|v_0]

    Reference: Bao et al. 2020, section 5.2, and code: 25 samples for each of four images, with labels 0, 1, 4 and 9.

    Args:
        sampler: The sampler of p(v|h).
        n: Number of samples for each image.
        labels: Labels of the images; if the data have no labels, the first test images are used.

    Example:
        >>> from types import SimpleNamespace
        >>> from eblvm_lit.data.digits import Digits
        >>> from eblvm_lit.methods.parts import MethodParts
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.posteriors.bernoulli import BernoulliPosterior
        >>> from eblvm_lit.samplers.annealed_langevin import AnnealedLangevin
        >>> data, q = Digits(), BernoulliPosterior(v_dim=64, h_dim=3)
        >>> method = SimpleNamespace(parts=MethodParts(energy=GRBM(v_dim=64, h_dim=3), posterior=q), seed=0)
        >>> data.setup()
        >>> short = Sampler(dynamics=AnnealedLangevin(n_hot=0, n_falling=3, n_cold=0))
        >>> len(Conditional(sampler=short, n=4).draw(method, data, torch.Generator()).axes)
        8
    """

    name = "conditional"

    def __init__(
        self, *, sampler: Sampler, n: PositiveInt = 25, labels: Sequence[NonNegativeInt] = (0, 1, 4, 9)
    ) -> None:
        self.sampler = sampler
        self.n = n
        self.labels = labels

    def applies(self, method: Method, data: ArrayDataModule) -> bool:
        """Return whether the figure can be drawn: it needs images, and a method with a posterior or an encoder.

        Models of every noise level have no such figure: their latents belong to one noise level, and no chain that
        passes through all levels can keep them.
        """
        return encodes_images(method, data) and not knows_every_level(method.parts.energy)

    def draw(self, method: Method, data: ArrayDataModule, generator: torch.Generator) -> Figure | None:
        """Draw the figure; see :meth:`Picture.draw`."""
        given = labelled_examples(data, self.labels)[0]
        h = encode(method.parts, given).repeat_interleave(self.n, dim=0)
        seed = derive_seed(method.seed, self.name)
        with progress_bar("conditional samples", len(h) * self.sampler.dynamics.n_steps) as on_step:
            v = draw_visible(self.sampler, method.parts.energy, h, seed=seed, on_step=on_step)
        images = [("$v_0$", data.as_bytes(image)) for image in given.split(1)]
        latent = "h(v_0)" if method.parts.posterior is None else "E_q[h|v_0]"
        samples = [(rf"$v \sim p(v \,|\, {latent})$", data.as_bytes(part)) for part in v.split(self.n)]
        return image_grid([images, samples], data.image_shape, width=2.5, height_ratios=(1, 5))
