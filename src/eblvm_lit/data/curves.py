"""Sets of points on curves in the plane; the sets with noise have a known density, the others have none."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from eblvm_lit.core.tensors import by_rows
from eblvm_lit.data.toy import ToyDataModule

__all__ = ["Circle", "Moons", "Rings", "SwissRoll", "TwoSpirals"]


class SwissRoll(ToyDataModule):
    """A spiral in the plane: the swiss roll viewed along its axis.

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

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw n independent points, shape (n, 2)."""
        t = 1.5 * math.pi * (1 + 2 * torch.rand(n, generator=generator, dtype=torch.float32))
        return torch.stack([t * t.cos(), t * t.sin()], dim=1)


class Moons(ToyDataModule):
    """Two interleaved half circles, each sampled at evenly spaced angles, in random order.

        v = (cos a, sin a) or (1 − cos a, ½ − sin a),  a evenly spaced on [0, π]

    Reference: ``sklearn.datasets.make_moons``, as in the toy sets of the code of Bao et al. 2020. Splits are
    of shape (n, 2); splits of the same size contain the same points in a different order.

    Example:
        >>> v = Moons().sample(1000, torch.Generator().manual_seed(0))
        >>> [round(x, 4) for x in v.mean(0).tolist()]  # the two halves mirror each other about (½, ¼)
        [0.5, 0.25]
    """

    sample_name = "moons"
    bounds = ((-1.5, 2.5), (-1.0, 1.5))

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Return n points at evenly spaced angles of the half circles, in random order, shape (n, 2)."""
        a = torch.linspace(0, math.pi, n // 2, dtype=torch.float32)
        b = torch.linspace(0, math.pi, n - n // 2, dtype=torch.float32)
        outer = torch.stack([a.cos(), a.sin()], dim=1)
        inner = torch.stack([1 - b.cos(), 0.5 - b.sin()], dim=1)
        # Shuffle: in sorted order, a batch of the validation or test split would cover only a part of a moon.
        return torch.cat([outer, inner])[torch.randperm(n, generator=generator)]


class Circle(ToyDataModule):
    """The unit circle, sampled at evenly spaced angles, in random order.

        v = (cos a, sin a),  a = 2π i / n,  i = 0, ..., n − 1

    Reference: the toy sets of the code of Bao et al. 2020. Splits are of shape (n, 2); those of one size
    contain the same points in a different order.

    Example:
        >>> v = Circle().sample(1000, torch.Generator().manual_seed(0))
        >>> torch.allclose(v.norm(dim=1), torch.ones(1000)), bool(v.mean(0).abs().max() < 1e-6)
        (True, True)
    """

    sample_name = "circle"
    bounds = ((-1.5, 1.5), (-1.5, 1.5))

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Return n points at evenly spaced angles, in random order, shape (n, 2)."""
        a = (2 * math.pi / n) * torch.randperm(n, generator=generator).to(torch.float32)
        return torch.stack([a.cos(), a.sin()], dim=1)


class Rings(ToyDataModule):
    """Four rings of equal weight around the origin, with Gaussian noise of standard deviation s = 0.08.

        v = r (cos a, sin a) + s ε,  r uniform on {0.75, 1.5, 2.25, 3},  a uniform on [0, 2π]
        p(v) = ¼ Σ_r exp(−(|v|² + r²) / 2s²) I₀(|v| r / s²) / 2πs²

    Reference: "rings" of Grathwohl et al. 2019, arXiv:1810.01367, code. Splits are of shape (n, 2).

    Example:
        >>> v = Rings().sample(1000, torch.Generator().manual_seed(0))
        >>> (v.norm(dim=1) / 0.75).round().unique().tolist()
        [1.0, 2.0, 3.0, 4.0]
    """

    sample_name = "rings"
    bounds = ((-4.0, 4.0), (-4.0, 4.0))
    radii = (0.75, 1.5, 2.25, 3.0)
    std = 0.08

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw n independent points, shape (n, 2)."""
        r = torch.tensor(self.radii, dtype=torch.float32)[torch.randint(len(self.radii), (n,), generator=generator)]
        a = 2 * math.pi * torch.rand(n, generator=generator, dtype=torch.float32)
        eps = torch.randn(n, 2, generator=generator, dtype=torch.float32)
        return torch.stack([r * a.cos(), r * a.sin()], dim=1) + self.std * eps

    def log_density(self, v: Tensor) -> Tensor:
        """Compute log p(v), shape (B,), for points v (B, 2)."""
        r = torch.tensor(self.radii, dtype=v.dtype, device=v.device)
        variance = self.std**2
        distance = v.norm(dim=1, keepdim=True)
        # The density contains exp(-(|v|^2 + r^2) / 2s^2) I_0(x) with x = |v| r / s^2. This product is computed as
        # exp(-(|v| - r)^2 / 2s^2) i0e(x), because i0e(x) = exp(-x) I_0(x) does not overflow as I_0 does.
        terms = -0.5 * (distance - r).square() / variance + torch.special.i0e(distance * r / variance).log()
        return terms.logsumexp(1) - math.log(2 * math.pi * variance * len(self.radii))


class TwoSpirals(ToyDataModule):
    """Two spirals, each the reflection of the other through the origin, with uniform and Gaussian noise.

        v = ± (−a cos a + u₁/2, a sin a + u₂/2) / 3 + s ε,  a = 3π √u₀,  s = 0.1

    with u₀, u₁ and u₂ uniform on [0, 1] and ε standard normal. The density is an integral over a; the integrand is a
    product, over the two coordinates, of differences of normal distribution functions. Reference: "2spirals" of
    Grathwohl et al. 2019, arXiv:1810.01367, code. Splits are of shape (n, 2).

    Example:
        >>> v = TwoSpirals().sample(1000, torch.Generator().manual_seed(0))
        >>> bool(v.norm(dim=1).max() < 3.8), bool(v.mean(0).norm() < 0.2)
        (True, True)
    """

    sample_name = "two_spirals"
    bounds = ((-4.0, 4.0), (-4.0, 4.0))
    std = 0.1
    jitter = 1 / 6
    n_nodes = 300  # number of quadrature nodes on the spiral, large enough that neighbours are less than std apart

    @staticmethod
    def curve(a: Tensor) -> Tensor:
        """Return points of the first spiral without noise, shape (n, 2), at the curve parameters a (n,)."""
        return torch.stack([-a * a.cos(), a * a.sin()], dim=1) / 3

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw n independent points, shape (n, 2)."""
        u = torch.rand(n, 3, generator=generator, dtype=torch.float32)
        sign = 1 - 2 * torch.randint(2, (n, 1), generator=generator)
        eps = torch.randn(n, 2, generator=generator, dtype=torch.float32)
        return sign * (self.curve(3 * math.pi * u[:, 0].sqrt()) + self.jitter * u[:, 1:]) + self.std * eps

    def log_density(self, v: Tensor) -> Tensor:
        """Compute log p(v), shape (B,), for points v (B, 2), by quadrature over the curve parameter a."""
        a = 3 * math.pi / self.n_nodes * (torch.arange(self.n_nodes, dtype=v.dtype, device=v.device) + 0.5)
        starts = self.curve(a)
        # The density of the curve parameter a is 2a / (9π²), so the weights are proportional to a.
        weights = a / a.sum()

        def density(v: Tensor) -> Tensor:
            total = torch.zeros_like(v[:, 0])
            for sign in (1, -1):
                gap = sign * v.unsqueeze(1) - starts
                ends = torch.special.ndtr(gap / self.std) - torch.special.ndtr((gap - self.jitter) / self.std)
                total = total + (ends / self.jitter).prod(-1) @ weights
            return total / 2

        return by_rows(density, 2**18 // self.n_nodes, v).log()
