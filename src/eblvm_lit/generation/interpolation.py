"""What lies between images: v ~ p(v|h) at latents between theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from eblvm_lit.energies.base import Energy
from eblvm_lit.errors import ConfigError
from eblvm_lit.generation.annealed_samples import AnnealedSamples
from eblvm_lit.generation.conditional import ConditionalSamples

__all__ = ["InterpolationSamples", "interpolate"]


def interpolate(corners: Tensor, n: int) -> Tensor:
    r"""Points at equal distances on the line between two corners, or on the parallelogram that three span.

    .. math:: x_i = a + \tfrac{i}{n - 1} (b - a), \quad
        x_{ij} = a + \tfrac{i}{n - 1} (b - a) + \tfrac{j}{n - 1} (c - a), \quad i, j \in \{0, \dots, n - 1\}

    Args:
        corners: a, b and perhaps c, shape (2 or 3, *shape).
        n: Points along each side, at least 2.

    Returns:
        Shape (n, *shape) or (n^2, *shape), row i by row.

    Example:
        >>> interpolate(torch.tensor([0.0, 4.0]), 3).tolist()
        [0.0, 2.0, 4.0]
        >>> interpolate(torch.tensor([0.0, 10.0, 1.0]), 2).tolist()
        [0.0, 1.0, 10.0, 11.0]
    """
    line = torch.linspace(0, 1, n, dtype=corners.dtype, device=corners.device)
    weights = torch.cartesian_prod(*[line] * (len(corners) - 1)).view(-1, len(corners) - 1)
    return corners[0] + torch.tensordot(weights, corners[1:] - corners[0], dims=1)


class InterpolationSamples:
    r"""Draws v ~ p(v|h) at latents h that lie between those of images.

    With ``shared_noise`` all chains have one start and one noise, and differ by their latents alone (Bao et al. 2021,
    code). Without, each has its own noise and begins at the same interpolation of the images' pixels (Bao et al. 2020,
    code).

    Args:
        sampler: The dynamics, and how many chains run at a time.
        n: Points along each side, corners included.
        shared_noise: As above.

    Raises:
        ConfigError: For fewer than two points.

    Example:
        >>> from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
        >>> from eblvm_lit.samplers.annealed_langevin import AnnealedLangevin
        >>> short = AnnealedSamples(langevin=AnnealedLangevin(n_hot=0, n_falling=10, n_cold=0))
        >>> between = InterpolationSamples(sampler=short, n=4)
        >>> line, square = torch.randn(2, 3), torch.randn(3, 3)
        >>> [len(v) for v in between.draw(GaussianLatentModel(v_dim=2, h_dim=3), [line, square], seed=0)]
        [4, 16]
    """

    def __init__(self, *, sampler: AnnealedSamples, n: int = 10, shared_noise: bool = False) -> None:
        if n < 2:
            raise ConfigError(f"Interpolation needs n >= 2 points, not {n}.")
        self.sampler, self.n, self.shared_noise = sampler, n, shared_noise

    def draw(
        self,
        energy: Energy,
        latents: Sequence[Tensor],
        *,
        seed: int,
        images: Sequence[Tensor] | None = None,
        on_step: Callable[[int], None] | None = None,
    ) -> list[Tensor]:
        """Samples of each set of corners; all of them run together.

        Args:
            energy: The model.
            latents: Corners of each set, shape (2 or 3, H).
            seed: Of the noise.
            images: Corners of the chains' starts, shape (2 or 3, *event), set by set; without them, and with
                ``shared_noise``, chains begin at 0.5 + N(0, I).
            on_step: Called with the number of samples that have moved a step.

        Returns:
            One tensor a set, in the order of :func:`interpolate`.
        """
        parts = [interpolate(corners, self.n) for corners in latents]
        h, start = torch.cat(parts), None
        if images is not None and not self.shared_noise:
            start = torch.cat([interpolate(corners, self.n) for corners in images])
        samples = [0] * len(h) if self.shared_noise else range(len(h))
        chains = ConditionalSamples(sampler=self.sampler)
        v = chains.draw(energy, h, seed=seed, samples=samples, start=start, on_step=on_step)
        return list(v.split([len(part) for part in parts]))
