"""Mixtures of isotropic Gaussians in the plane."""

from __future__ import annotations

import math

import torch

from eblvm_lit.data.toy import ToyDataModule

__all__ = ["Blobs", "DiamondBlobs", "LineBlobs", "TriangleBlobs", "TwentyFiveGaussians", "TwoBlobs"]


class Blobs(ToyDataModule):
    """A mixture of Gaussians with equal weights; a subclass sets the means and standard deviations.

        p(v) = (1/C) Σ_c N(v; μ_c, s_c² I)

    Attributes:
        centres: The means μ, C points of the plane.
        stds: The standard deviations s, one per component.
    """

    centres: tuple[tuple[float, float], ...]
    stds: tuple[float, ...]

    def sample(self, n: int, generator: torch.Generator) -> torch.Tensor:
        """Draw n points, shape (n, 2), each from the Gaussian of a uniformly drawn component.

        They are v = μ_c + s_c ε, with the component c uniform and ε standard normal.
        """
        centres = torch.tensor(self.centres, dtype=torch.float32)
        stds = torch.tensor(self.stds, dtype=torch.float32)
        c = torch.randint(len(centres), (n,), generator=generator)
        eps = torch.randn(n, 2, generator=generator, dtype=torch.float32)
        return centres[c] + stds[c].unsqueeze(1) * eps

    def log_density(self, v: torch.Tensor) -> torch.Tensor:
        """Compute log p(v), shape (B,), for points v (B, 2)."""
        centres, stds = (torch.tensor(x, dtype=v.dtype, device=v.device) for x in (self.centres, self.stds))
        squares = (v.unsqueeze(1) - centres).square().sum(-1) / stds.square()
        return (-0.5 * squares - (2 * math.pi * stds.square()).log()).logsumexp(1) - math.log(len(centres))


class DiamondBlobs(Blobs):
    """Four Gaussians of standard deviation 0.1, with means at distance 1 from the origin on the axes.

        p(v) = ¼ Σ_c N(v; μ_c, 0.1² I),  μ = (±1, 0), (0, ±1)

    Reference: the toy sets of the code of Bao et al. 2020. Splits are of shape (n, 2).

    Example:
        >>> v = DiamondBlobs().sample(1000, torch.Generator().manual_seed(0))
        >>> bool(((v.norm(dim=1) - 1).abs() < 0.5).all())
        True
    """

    sample_name = "diamond_blobs"
    bounds = ((-1.5, 1.5), (-1.5, 1.5))
    centres = ((1.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (0.0, -1.0))
    stds = (0.1,) * 4


class TriangleBlobs(Blobs):
    """Three Gaussians of standard deviation 0.1 at the corners of an equilateral triangle.

        p(v) = ⅓ Σ_c N(v; μ_c, 0.1² I),  μ = (0, 1), (√3/2, −½), (−√3/2, −½)

    Reference: the toy sets of the code of Bao et al. 2020. Splits are of shape (n, 2).

    Example:
        >>> v = TriangleBlobs().sample(1000, torch.Generator().manual_seed(0))
        >>> bool((v[:, 1] > 0.5).float().mean().sub(1 / 3).abs() < 0.1)
        True
    """

    sample_name = "triangle_blobs"
    bounds = ((-1.5, 1.5), (-1.25, 1.75))
    centres = ((0.0, 1.0), (3**0.5 / 2, -0.5), (-(3**0.5) / 2, -0.5))
    stds = (0.1,) * 3


class LineBlobs(Blobs):
    """Three Gaussians of standard deviation 0.1 on a diagonal line.

        p(v) = ⅓ Σ_c N(v; μ_c, 0.1² I),  μ = (−1, −1), (0, 0), (1, 1)

    Reference: the toy sets of the code of Bao et al. 2020. Splits are of shape (n, 2).

    Example:
        >>> v = LineBlobs().sample(1000, torch.Generator().manual_seed(0))
        >>> bool((v[:, 0] - v[:, 1]).std() < 0.2)  # 0.1 √2 across the diagonal
        True
    """

    sample_name = "line_blobs"
    bounds = ((-1.5, 1.5), (-1.5, 1.5))
    centres = ((-1.0, -1.0), (0.0, 0.0), (1.0, 1.0))
    stds = (0.1,) * 3


class TwoBlobs(Blobs):
    """Two Gaussians with different standard deviations.

        p(v) = ½ N(v; (−1, −1), 0.1² I) + ½ N(v; (1, 1), 0.2² I)

    Reference: the toy sets of the code of Bao et al. 2020. Splits are of shape (n, 2).

    Example:
        >>> v = TwoBlobs().sample(1000, torch.Generator().manual_seed(0))
        >>> bool(v[v[:, 0] < 0].std(0).max() < v[v[:, 0] > 0].std(0).min())
        True
    """

    sample_name = "two_blobs"
    bounds = ((-2.0, 2.0), (-2.0, 2.0))
    centres = ((-1.0, -1.0), (1.0, 1.0))
    stds = (0.1, 0.2)


class TwentyFiveGaussians(Blobs):
    """Twenty-five Gaussians of standard deviation 0.05 whose means form a grid of five by five with spacing 2.

        p(v) = 1/25 Σ_c N(v; μ_c, 0.05² I),  μ = (2i, 2j),  i, j = −2, ..., 2

    The modes are forty standard deviations apart: a common test of whether a method finds all modes. Reference:
    Gulrajani et al. 2017, arXiv:1704.00028, code, without its division by 2.828. Splits are of shape (n, 2).

    Example:
        >>> v = TwentyFiveGaussians().sample(1000, torch.Generator().manual_seed(0))
        >>> len((v / 2).round().unique(dim=0))
        25
    """

    sample_name = "twenty_five_gaussians"
    bounds = ((-5.0, 5.0), (-5.0, 5.0))
    centres = tuple((2.0 * i, 2.0 * j) for i in range(-2, 3) for j in range(-2, 3))
    stds = (0.05,) * 25
