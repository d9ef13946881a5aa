"""Curves in the plane without noise: these distributions have no density with respect to area."""

from __future__ import annotations

import math

import torch

from eblvm_lit.data.toy import ToyDataModule

__all__ = ["Circle", "Moons", "SwissRoll"]


class SwissRoll(ToyDataModule):
    """A spiral, which is the swiss roll viewed along its axis.

        v = t (cos t, sin t),  t = 3π/2 (1 + 2u),  u uniform on [0, 1]

    Reference: coordinates 0 and 2 of ``sklearn.datasets.make_swiss_roll``, as in the toy sets of the code of
    Bao et al. 2020. Splits are of shape (n, 2).

    Example:
        >>> v = SwissRoll().sample(1000, torch.Generator().manual_seed(0))
        >>> t = v.norm(dim=1, keepdim=True)
        >>> torch.allclose(v, t * torch.cat([t.cos(), t.sin()], dim=1), atol=1e-3)
        True
    """

    sample_name = "swiss_roll"
    bounds = ((-12.0, 16.0), (-14.0, 17.0))

    def sample(self, n: int, generator: torch.Generator) -> torch.Tensor:
        """Draw n independent points, shape (n, 2)."""
        t = 1.5 * math.pi * (1 + 2 * torch.rand(n, generator=generator, dtype=torch.float32))
        return torch.stack([t * t.cos(), t * t.sin()], dim=1)


class Moons(ToyDataModule):
    """Two interleaved half circles, each an even grid of angles, shuffled.

        v = (cos a, sin a) or (1 − cos a, ½ − sin a),  a evenly spaced on [0, π]

    Reference: ``sklearn.datasets.make_moons``, as in the toy sets of the code of Bao et al. 2020. Splits are
    of shape (n, 2); those of one size hold the same points in another order.

    Example:
        >>> v = Moons().sample(1000, torch.Generator().manual_seed(0))
        >>> [round(x, 4) for x in v.mean(0).tolist()]  # the two halves mirror each other about (½, ¼)
        [0.5, 0.25]
    """

    sample_name = "moons"
    bounds = ((-1.5, 2.5), (-1.0, 1.5))

    def sample(self, n: int, generator: torch.Generator) -> torch.Tensor:
        """Return the n points of the grid in random order, shape (n, 2)."""
        a = torch.linspace(0, math.pi, n // 2, dtype=torch.float32)
        b = torch.linspace(0, math.pi, n - n // 2, dtype=torch.float32)
        outer = torch.stack([a.cos(), a.sin()], dim=1)
        inner = torch.stack([1 - b.cos(), 0.5 - b.sin()], dim=1)
        # in sorted order, the first batches of a split would cover only one end of a moon
        return torch.cat([outer, inner])[torch.randperm(n, generator=generator)]


class Circle(ToyDataModule):
    """The unit circle as an even grid of angles, shuffled.

        v = (cos a, sin a),  a = 2π i / n,  i = 0, ..., n − 1

    Reference: the toy sets of the code of Bao et al. 2020. Splits are of shape (n, 2); those of one size
    hold the same points in another order.

    Example:
        >>> v = Circle().sample(1000, torch.Generator().manual_seed(0))
        >>> torch.allclose(v.norm(dim=1), torch.ones(1000)), bool(v.mean(0).abs().max() < 1e-6)
        (True, True)
    """

    sample_name = "circle"
    bounds = ((-1.5, 1.5), (-1.5, 1.5))

    def sample(self, n: int, generator: torch.Generator) -> torch.Tensor:
        """Return the n points of the grid in random order, shape (n, 2)."""
        a = (2 * math.pi / n) * torch.randperm(n, generator=generator).to(torch.float32)
        return torch.stack([a.cos(), a.sin()], dim=1)
