"""How many modes of a mixture a model's samples find."""

from __future__ import annotations

import math
from typing import cast

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor

from eblvm_lit.core.ranges import Share
from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.data.blobs import Blobs
from eblvm_lit.draws.base import Draws
from eblvm_lit.draws.choice import DrawnAsTheRun
from eblvm_lit.evaluation.base import Metric
from eblvm_lit.methods.base import Method
from eblvm_lit.samplers.dynamics import Dynamics
from eblvm_lit.samplers.langevin import Langevin
from eblvm_lit.samplers.sampler import Sampler
from eblvm_lit.utils.quantities import Quantity

__all__ = ["Modes", "gaussian_shares", "shares_of_modes"]

N_STDS = 3.0
# A mode needs so many times the share that one Gaussian has there. Chains from uniform points of the window gave that
# Gaussian up to 1.15 times its own share at the modes of blobs; the blobs themselves have at least 1.7 times it.
EXCESS = 1.5


def shares_of_modes(samples: Tensor, centres: Tensor, stds: Tensor, n_stds: float = N_STDS) -> Tensor:
    """The share of samples (n, 2) within some standard deviations of each of the centres (C, 2), shape (C,).

    Example:
        >>> v = torch.tensor([[0.0, 0.0], [0.1, 0.0], [5.0, 5.0], [2.0, 0.0]])
        >>> shares_of_modes(v, torch.tensor([[0.0, 0.0], [5.0, 5.0]]), torch.tensor([0.1, 0.1])).tolist()
        [0.5, 0.25]
    """
    return (torch.cdist(samples, centres) <= n_stds * stds).to(samples.dtype).mean(0)


def gaussian_shares(data: Blobs, n_nodes: int = 64) -> Tensor:
    r"""The share within 3 standard deviations of each mode that the Gaussian of the mixture's moments has, shape (C,).

    .. math:: \int_{|v - \mu_c| \le 3 s_c} N(v; \bar\mu, \Sigma)\, dv, \quad
        \Sigma = \tfrac1C \sum_c (\mu_c - \bar\mu)(\mu_c - \bar\mu)^\top + s_c^2 I

    By Gauss-Legendre quadrature over the radius and equally many equal angles, in float64.

    Args:
        data: The mixture.
        n_nodes: Number of radii, and of angles.

    Example:
        >>> from eblvm_lit.data.blobs import TwoBlobs
        >>> [round(share, 3) for share in gaussian_shares(TwoBlobs()).tolist()]
        [0.085, 0.198]
    """
    centres, stds = (torch.tensor(x, dtype=torch.float64) for x in (data.centres, data.stds))
    covariance = torch.cov(centres.T, correction=0) + stds.square().mean() * torch.eye(2, dtype=torch.float64)
    gaussian = torch.distributions.MultivariateNormal(centres.mean(0), covariance)
    nodes, weights = (torch.from_numpy(x) for x in np.polynomial.legendre.leggauss(n_nodes))
    radii = (nodes + 1) / 2
    angles = torch.arange(n_nodes, dtype=torch.float64) * (2 * math.pi / n_nodes)
    disc = radii[:, None, None] * torch.stack([angles.cos(), angles.sin()], -1)
    areas = (weights / 2 * radii)[:, None] * (2 * math.pi / n_nodes)  # of the unit disc
    reach = N_STDS * stds[:, None, None]
    return (gaussian.log_prob(centres[:, None, None] + reach[..., None] * disc).exp() * areas * reach**2).sum((1, 2))


class Modes(
    DrawnAsTheRun,
    Metric,
    emits={"modes": Quantity(1), "samples_at_modes": Quantity(1), "rarest_mode": Quantity(1)},
):
    r"""How many modes of a mixture of Gaussians are found by samples of the model, and how many samples are near one.

    A sample belongs to a mode if it is within 3 standard deviations of its centre. A mode counts as found if it has at
    least ``min_share`` of its fair share of the samples, and at least one and a half times the share that the one
    Gaussian of the data's mean and covariance has there. Samples all over the plane find none, and those of one
    Gaussian neither, where the data's modes are apart.

    Gives the number of ``modes`` found; ``samples_at_modes``, the share of samples that belong to any; and
    ``rarest_mode``, the smallest share of a mode times the number of modes. Each mode has 0.989 of its fair share in
    the mixture; the smallest of a finite sample is lower, 0.951 in the training set of 25 Gaussians. The samples are
    those of the run, by default of plain Langevin dynamics from uniform points of the box of the training examples.
    They rarely leave a narrow mode, so shares tell where the model has modes, not how much mass these have; a sampler
    that crosses between modes tells both.
    Applies to :class:`~eblvm_lit.data.blobs.Blobs`.

    Args:
        n_samples: Number of samples.
        sampler: The run's sampler: see :func:`~eblvm_lit.draws.choice.draws_of`. Steps of plain Langevin dynamics are
            well below the square of the modes' standard deviation.
        langevin: The steps towards the prior of a model that learns one; not used for others.
        min_share: Of 1 / C, for C modes, which a mode needs at least to count as found.

    Example:
        >>> from types import SimpleNamespace
        >>> from eblvm_lit.data.blobs import TwoBlobs
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.methods.parts import MethodParts
        >>> from eblvm_lit.samplers.gibbs import Gibbs
        >>> data, parts = TwoBlobs(), MethodParts(energy=GRBM(v_dim=2, h_dim=3))
        >>> method = SimpleNamespace(parts=parts, seed=0, device="cpu")
        >>> list(Modes(n_samples=50, sampler=Gibbs(n_steps=2)).evaluate(method, data, "test", torch.Generator()))
        ['modes', 'samples_at_modes', 'rarest_mode']
    """

    def __init__(
        self,
        *,
        n_samples: PositiveInt = 2500,
        sampler: Sampler | Dynamics | None = None,
        langevin: Langevin | None = None,
        min_share: Share = 0.1,
    ) -> None:
        self.n_samples = n_samples
        self.min_share = min_share
        super().__init__(sampler=sampler, langevin=langevin)

    def applies(self, method: Method, data: ArrayDataModule) -> bool:
        """Whether the metric applies; see :meth:`Metric.applies`."""
        return isinstance(data, Blobs) and self.draws(method, data) is not None

    def evaluate(
        self, method: Method, data: ArrayDataModule, split: str, generator: torch.Generator
    ) -> dict[str, float]:
        """The numbers; see :meth:`Metric.evaluate`."""
        data = cast(Blobs, data)
        samples = cast(Draws, self.draws(method, data)).draw(self.n_samples, seed=method.seed)
        centres, stds = (torch.tensor(x).to(samples) for x in (data.centres, data.stds))
        shares = shares_of_modes(samples, centres, stds)
        least = (EXCESS * gaussian_shares(data)).clamp(min=self.min_share / len(centres))
        n_found = float((shares >= least.to(shares)).sum())
        rarest = float(shares.min() * len(centres))
        return {"modes": n_found, "samples_at_modes": float(shares.sum()), "rarest_mode": rarest}
