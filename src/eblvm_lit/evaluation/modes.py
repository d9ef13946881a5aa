"""The number of a mixture's modes that a model's samples cover."""

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
# A mode counts as found if its share of samples is at least EXCESS times the share that a single Gaussian with the
# data's mean and covariance would have there. Chains that sample this Gaussian from uniform starting points give the
# modes of the blobs up to 1.15 times the Gaussian's exact share. Samples of the blobs give at least 1.7 times this
# share.
EXCESS = 1.5


def shares_of_modes(samples: Tensor, centres: Tensor, stds: Tensor, n_stds: float = N_STDS) -> Tensor:
    """Compute, for each of C centres, the share of samples within ``n_stds`` standard deviations of that centre.

    ``samples`` has shape (n, 2), and ``centres`` shape (C, 2).

    Example:
        >>> v = torch.tensor([[0.0, 0.0], [0.1, 0.0], [5.0, 5.0], [2.0, 0.0]])
        >>> shares_of_modes(v, torch.tensor([[0.0, 0.0], [5.0, 5.0]]), torch.tensor([0.1, 0.1])).tolist()
        [0.5, 0.25]
    """
    return (torch.cdist(samples, centres) <= n_stds * stds).to(samples.dtype).mean(0)


def gaussian_shares(data: Blobs, n_nodes: int = 64) -> Tensor:
    r"""Compute the probability of each of the mixture's C modes under a single Gaussian, shape (C,).

    The Gaussian has the mean and the covariance of the mixture. A mode is the disc within 3 standard deviations of its
    centre.

    .. math:: \int_{|v - \mu_c| \le 3 s_c} N(v; \bar\mu, \Sigma)\, dv, \quad
        \Sigma = \tfrac1C \sum_c (\mu_c - \bar\mu)(\mu_c - \bar\mu)^\top + s_c^2 I

    The integral is computed in float64, by Gauss-Legendre quadrature over the radius and a sum over equally spaced
    angles.

    Args:
        data: The mixture.
        n_nodes: The number of radii, which is also the number of angles.

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
    areas = (weights / 2 * radii)[:, None] * (2 * math.pi / n_nodes)  # the area of each node in the unit disc
    reach = N_STDS * stds[:, None, None]
    return (gaussian.log_prob(centres[:, None, None] + reach[..., None] * disc).exp() * areas * reach**2).sum((1, 2))


class Modes(
    DrawnAsTheRun,
    Metric,
    emits={
        "modes": Quantity(1, "modes", "the number of the data's modes that samples find"),
        "samples_at_modes": Quantity(1, "", "the share of samples within 3 standard deviations of some mode"),
        "rarest_mode": Quantity(1, "", "the smallest share of a mode, in units of its fair share"),
    },
):
    r"""The number of modes of a Gaussian mixture that the model's samples cover, and the share of samples near a mode.

    A sample belongs to a mode if it is within 3 standard deviations of its centre. The fair share of each of C modes
    is 1 / C. A mode counts as found if it has at least ``min_share`` times its fair share of the samples, and at least
    one and a half times the share that a single Gaussian with the data's mean and covariance has there. So no mode
    counts as found by samples that are spread over the whole plane, nor, where the data's modes are well separated, by
    samples of a single Gaussian.

    The metric computes three numbers: ``modes``, the number of modes found; ``samples_at_modes``, the share of samples
    that belong to any mode; and ``rarest_mode``, the smallest share of a mode, in units of the fair share 1 / C. In the
    mixture itself each mode has 0.989 of its fair share; the smallest one in a finite sample is lower, 0.951 in the
    training set of 25 Gaussians.

    The samples are those that the run draws, by default with plain Langevin dynamics from uniform points of the box of
    the training examples. Such chains rarely leave a narrow mode, so the shares show where the model has modes, but not
    how much mass these have; a sampler that crosses between modes shows both. The metric applies to
    :class:`~eblvm_lit.data.blobs.Blobs`.

    Args:
        n_samples: Number of samples.
        sampler: The run's sampler: see :func:`~eblvm_lit.draws.choice.draws_of`. For plain Langevin dynamics choose
            step sizes well below the square of the modes' standard deviation.
        langevin: The Langevin steps that sample the prior of a model with a learned prior; other models ignore them.
        min_share: The smallest share of samples, as a multiple of the fair share 1 / C, with which a mode counts as
            found.

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

    needs = "sets of points that are mixtures of Gaussians (`..._blobs`, `twenty_five_gaussians`)"

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
        """Return whether the metric applies to a method and its data; see :meth:`Metric.applies`."""
        return isinstance(data, Blobs) and self.draws(method, data) is not None

    def evaluate(
        self, method: Method, data: ArrayDataModule, split: str, generator: torch.Generator
    ) -> dict[str, float]:
        """Draw samples, and compute the numbers that describe their modes; see :meth:`Metric.evaluate`."""
        data = cast(Blobs, data)
        samples = cast(Draws, self.draws(method, data)).draw(self.n_samples, seed=method.seed)
        centres, stds = (torch.tensor(x).to(samples) for x in (data.centres, data.stds))
        shares = shares_of_modes(samples, centres, stds)
        least = (EXCESS * gaussian_shares(data)).clamp(min=self.min_share / len(centres))
        n_found = float((shares >= least.to(shares)).sum())
        rarest = float(shares.min() * len(centres))
        return {"modes": n_found, "samples_at_modes": float(shares.sum()), "rarest_mode": rarest}
