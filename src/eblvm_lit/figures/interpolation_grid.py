"""A figure of samples at latents interpolated between the latents of test images."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from pydantic import PositiveInt
from torch import Tensor

from eblvm_lit.core.seeding import derive_seed
from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.draws.coding import decode, encode, reconstructs
from eblvm_lit.energies.noise_conditional import knows_every_level
from eblvm_lit.errors import ConfigError
from eblvm_lit.figures.base import Picture
from eblvm_lit.figures.examples import encodes_images, labelled_examples
from eblvm_lit.figures.image_grid import image_grid
from eblvm_lit.methods.base import Method
from eblvm_lit.samplers.conditional import draw_between, interpolate
from eblvm_lit.samplers.sampler import Sampler
from eblvm_lit.utils.progress import progress_bar

__all__ = ["Interpolation"]

# the class labels of the images in the published figures: SQUARE for figures of three images, LINE for two images
SQUARE = (0, 1, 4)
LINE = (1, 7)


class Interpolation(Picture):
    r"""A figure of samples of p(v|h), or of G(h), at latents h interpolated between the latents of test images.

    The latents lie on a parallelogram that the latents a, b and c of three images span, and on lines between the
    latents a and b of two images:

    .. math:: h_{ij} = a + \tfrac{i}{n - 1} (b - a) + \tfrac{j}{n - 1} (c - a), \quad
        h_i = a + \tfrac{i}{n - 1} (b - a), \quad \text{or } h_i \text{ from } \rho f \text{ to } {-\rho f}

    If the data have labels, the three images have the labels 0, 1 and 4, and the two images the labels 1 and 7. With
    ``rho`` each line passes through the origin instead, and f is the latent of a random training image. Reference: Bao
    et al. 2020, code (``shared_noise=false rho=null``), and Bao et al. 2021, code (``shared_noise=true``, with rho 1 on
    MNIST, 5 on CIFAR10 and 3 on CelebA).

    Neighbouring images should differ little, and images between two classes should still look like images. Equal images
    everywhere mean that v does not depend on the latents.

    Args:
        sampler: The sampler of p(v|h); None for a method with a generator, which draws G(h).
        n: Number of points along each line and each side of the parallelogram.
        n_lines: Number of lines.
        shared_noise: Whether all chains have the same start and the same noise. If false, each chain starts at an
            interpolation between the images and has its own noise.
        rho: The factor rho in the third formula; None draws lines between two images.

    Raises:
        ConfigError: If rho is given without ``shared_noise``.

    Example:
        >>> from types import SimpleNamespace
        >>> from eblvm_lit.data.digits import Digits
        >>> from eblvm_lit.methods.parts import MethodParts
        >>> from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
        >>> from eblvm_lit.posteriors.gaussian import LinearGaussianPosterior
        >>> from eblvm_lit.samplers.annealed_langevin import AnnealedLangevin
        >>> data, q = Digits(), LinearGaussianPosterior(v_dim=64, h_dim=3)
        >>> parts = MethodParts(energy=GaussianLatentModel(v_dim=64, h_dim=3), posterior=q)
        >>> method = SimpleNamespace(parts=parts, seed=0)
        >>> data.setup()
        >>> short = Sampler(dynamics=AnnealedLangevin(n_hot=0, n_falling=3, n_cold=0))
        >>> figure = Interpolation(sampler=short, n=3).draw(method, data, torch.Generator())
        >>> [panel.get_title() for panel in figure.axes]
        ['between three images', 'between two images']
    """

    name = "interpolation"

    def __init__(
        self,
        *,
        sampler: Sampler | None = None,
        n: PositiveInt = 10,
        n_lines: PositiveInt = 10,
        shared_noise: bool = False,
        rho: float | None = None,
    ) -> None:
        if rho is not None and not shared_noise:
            raise ConfigError("Lines from rho f to -rho f are not between images: use rho with shared_noise=true.")
        self.sampler = sampler
        self.n = n
        self.n_lines = n_lines
        self.shared_noise = shared_noise
        self.rho = rho

    def applies(self, method: Method, data: ArrayDataModule) -> bool:
        """Return whether the figure can be drawn: it needs images, a posterior or an encoder, and E(v, h) or G(h).

        Models of every noise level have no such figure: their latents belong to one noise level, and no chain that
        passes through all levels can keep them.
        """
        if self.sampler is None:
            return data.image_shape is not None and reconstructs(method.parts)
        return encodes_images(method, data) and not knows_every_level(method.parts.energy)

    def draw(self, method: Method, data: ArrayDataModule, generator: torch.Generator) -> Figure | None:
        """Draw the figure; see :meth:`Picture.draw`."""
        images = [labelled_examples(data, SQUARE)[0], *self._ends(data, generator)]
        latents = [encode(method.parts, v) for v in images]
        lines = "between two images"
        if self.rho is not None:
            latents[1:] = [torch.cat([self.rho * f, -self.rho * f]) for f in latents[1:]]
            lines = rf"from $\rho f$ to $-\rho f$, $\rho$ = {self.rho:g}"
        square, *rows = self._drawn(method, latents, images)
        panels = [("between three images", data.as_bytes(square)), (lines, data.as_bytes(torch.cat(rows)))]
        return image_grid([panels], data.image_shape, columns=self.n)

    def _drawn(self, method: Method, latents: list[Tensor], images: list[Tensor]) -> list[Tensor]:
        """Return the images at interpolated latents, as one tensor for each set of two or three given latents."""
        if self.sampler is None:
            return [decode(method.parts.decoding, interpolate(corners, self.n)) for corners in latents]
        options = {"seed": derive_seed(method.seed, self.name), "images": None if self.shared_noise else images}
        total = (self.n**2 + self.n_lines * self.n) * self.sampler.dynamics.n_steps
        with progress_bar("interpolation", total) as on_step:
            return draw_between(self.sampler, method.parts.energy, latents, self.n, on_step=on_step, **options)

    def _ends(self, data: ArrayDataModule, generator: torch.Generator) -> list[Tensor]:
        """Return the images that define each row: two test images, or one training image if ``self.rho`` is given."""
        if self.rho is None:
            return list(labelled_examples(data, LINE, self.n_lines))
        options = {"generator": generator, "device": generator.device}
        rows = torch.randint(len(data.splits.train), (self.n_lines, 1), **options)
        return [data.as_float(data.splits.train[row]) for row in rows.cpu()]
