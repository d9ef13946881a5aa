"""Annealed importance sampling of a GRBM's partition function, and the classes of its estimates."""

from __future__ import annotations

import logging
import math
from typing import NamedTuple

import torch
from pydantic import PositiveInt
from torch import Tensor
from torch.nn.functional import softplus

from eblvm_lit.energies.grbm import GRBM
from eblvm_lit.utils.progress import progress_bar

__all__ = ["AIS", "AISEstimate", "Sandwich", "estimate_from_log_weights", "reversed_estimate"]

# Warn if (effective sample size - 1) / (number of chains - 1) is below this value. Both numbers are reduced by 1,
# because an effective sample size is at least 1.
FEWEST = 0.1

log = logging.getLogger(__name__)


class AISEstimate(NamedTuple):
    """An estimate of the log partition function log Z by importance sampling.

    Attributes:
        log_z: The estimate, in nats.
        standard_error: The estimate's standard error by the delta method, s(w) / (mean(w) sqrt(n)) for weights w.
        ess: The effective sample size (sum w)^2 / sum w^2, at most the number of chains. If it is small,
            neither the estimate nor its standard error is reliable.
    """

    log_z: float
    standard_error: float
    ess: float


class Sandwich(NamedTuple):
    """Two estimates of log Z, one with an expectation of at most log Z, and one with an expectation of at least log Z.

    Attributes:
        lower: The estimate by chains from the base to the model.
        upper: The estimate by chains from exact samples of the model to the base.
    """

    lower: AISEstimate
    upper: AISEstimate


def estimate_from_log_weights(log_weights: Tensor, log_z_base: float, *, advice: str = "Raise n_betas.") -> AISEstimate:
    """Estimate log Z from the log importance weights; log a warning if few chains have most of the weight.

    The estimate is logmeanexp(log w) + log Z_0, where Z_0 is the partition function of the base model.

    Args:
        log_weights: The log importance weight log w of each chain, shape (n,), n >= 2.
        log_z_base: The exact log Z_0 of the base model.
        advice: The last sentence of the warning, which says what raises the effective sample size.

    Example:
        >>> estimate_from_log_weights(torch.zeros(100, dtype=torch.float64), 1.0)
        AISEstimate(log_z=1.0, standard_error=0.0, ess=100.0)
    """
    n = len(log_weights)
    shift = log_weights.max()
    w = (log_weights - shift).exp()
    log_z = float(shift + w.mean().log()) + log_z_base
    error = float(w.std() / (w.mean() * math.sqrt(n)))
    ess = float(w.sum().square() / w.square().sum())
    if not ess - 1 >= FEWEST * (n - 1):  # the condition is negated, so that NaN also causes a warning
        log.warning(
            "Importance sampling of log Z has an effective sample size of %.1f among %d: log Z may be wrong by "
            "more than its standard error says. %s",
            *(ess, n, advice),
        )
    return AISEstimate(log_z, error, ess)


def reversed_estimate(log_weights: Tensor, log_z_base: float) -> AISEstimate:
    """Estimate log Z from the log importance weights of reversed chains, which start at samples of the model.

    The weights have the expectation E[w] = Z_0 / Z, so the estimate is log Z_0 - logmeanexp(log w).

    Example:
        >>> reversed_estimate(torch.full((9,), 2.0, dtype=torch.float64), 5.0)
        AISEstimate(log_z=3.0, standard_error=0.0, ess=9.0)
    """
    ratio = estimate_from_log_weights(log_weights, -log_z_base)
    return ratio._replace(log_z=-ratio.log_z)


class AIS:
    r"""Annealed importance sampling that starts at a GRBM with zero coupling and ends at the given GRBM.

    The model at inverse temperature beta has the parameters beta W and beta c, and the same b and sigma. At beta = 0, v
    and h are independent, v ~ N(b, sigma^2) and h uniform: :math:`Z_0 = (2\pi)^{d/2} 2^m \prod_i \sigma_i`. A
    chain starts with a sample of this base, makes one Gibbs sweep at each beta_k between 0 and 1, and accumulates

    .. math:: \log w = \sum_k F_{\beta_{k-1}}(v_k) - F_{\beta_k}(v_k)
        = \sum_{k,j} \log\frac{1 + e^{\beta_k x_{kj}}}{1 + e^{\beta_{k-1} x_{kj}}}, \; x_k = c + U^\top v_k.

    :meth:`sandwich` also runs chains backwards, from exact samples of the GRBM to the base with the same sweeps; their
    estimate bounds log Z from above. Reference: Neal 2001; Salakhutdinov and Murray 2008; Grosse et al. 2015, arXiv
    1511.02543. Bao et al. 2020 use 2000 chains and 2000 temperatures.

    Args:
        n_chains: Number of independent chains.
        n_betas: Number of equally spaced inverse temperatures, including 0 and 1.

    Example:
        >>> grbm = GRBM(v_dim=2, h_dim=3).double()
        >>> estimate = AIS(n_chains=500, n_betas=50).estimate(grbm, torch.Generator().manual_seed(0))
        >>> abs(estimate.log_z - grbm.log_partition().item()) < 5 * estimate.standard_error
        True
    """

    def __init__(self, *, n_chains: PositiveInt = 2000, n_betas: PositiveInt = 2000) -> None:
        self.n_chains = n_chains
        self.n_betas = n_betas

    @staticmethod
    def supports(energy: object) -> bool:
        """Return whether the energy is a GRBM, because the estimator supports no other model."""
        return isinstance(energy, GRBM)

    @torch.no_grad()
    def estimate(self, energy: GRBM, generator: torch.Generator) -> AISEstimate:
        """Estimate log Z of a GRBM with chains from the base distribution to the model.

        Args:
            energy: The GRBM. Chains run in its floating-point type and on its device; log weights are float64.
            generator: Source of all randomness, on the energy's device.
        """
        return estimate_from_log_weights(self.log_weights(energy, generator), _log_z_base(energy))

    @torch.no_grad()
    def sandwich(self, energy: GRBM, generator: torch.Generator) -> Sandwich:
        """Estimate log Z of a GRBM from below and from above, with forward and reversed chains.

        The reversed chains start at exact samples of the GRBM. The arguments are the same as in :meth:`estimate`.
        """
        up = self.log_weights(energy, generator)
        down = self.log_weights(energy, generator, start=energy.sample_exact(self.n_chains, generator))
        log_z_base = _log_z_base(energy)
        return Sandwich(estimate_from_log_weights(up, log_z_base), reversed_estimate(down, log_z_base))

    @torch.no_grad()
    def log_weights(self, energy: GRBM, generator: torch.Generator, start: Tensor | None = None) -> Tensor:
        """Run the chains, and return their log importance weights, shape (n_chains,), float64.

        Args:
            energy: The GRBM.
            generator: Source of all randomness, on the energy's device.
            start: Exact samples of the GRBM, shape (n_chains, d), from which the chains go to the base. If None, chains
                go from samples of the base to the GRBM.
        """
        U = energy.coupling()
        std = energy.visible_std()
        b = energy.b
        c = energy.c
        # at inverse temperature beta, v given h has the mean b + beta h @ pull
        pull = (std.square().unsqueeze(-1) * U).T.contiguous()
        betas = torch.linspace(0, 1, self.n_betas, dtype=torch.float64).tolist()
        v = b.new_empty(self.n_chains, len(b))
        u = b.new_empty(self.n_chains, len(c))
        if start is None:
            v.normal_(generator=generator).mul_(std).add_(b)
        else:
            betas = betas[::-1]
            v.copy_(start)
        x = torch.addmm(c, v, U)
        log_w = b.new_zeros(self.n_chains, dtype=torch.float64)
        with progress_bar("log Z by AIS", self.n_betas - 1) as on_step:
            for k in range(1, self.n_betas):
                # The quadratic part of the free energy F does not depend on beta, and cancels in the difference.
                log_w += (softplus(betas[k] * x) - softplus(betas[k - 1] * x)).sum(-1, dtype=torch.float64)
                if k < self.n_betas - 1:  # no importance weight depends on a sweep at the last beta
                    h = (u.uniform_(generator=generator) < (betas[k] * x).sigmoid_()).to(v.dtype)
                    v.normal_(generator=generator).mul_(std).add_(b).addmm_(h, pull, alpha=betas[k])
                    torch.addmm(c, v, U, out=x)
                on_step(1)
        return log_w


def _log_z_base(energy: GRBM) -> float:
    std = energy.visible_std()
    gaussian = float(std.double().log().sum()) + 0.5 * std.numel() * math.log(2 * math.pi)
    return gaussian + energy.h_dim * math.log(2)
