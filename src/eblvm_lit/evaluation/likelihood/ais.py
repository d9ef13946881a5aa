"""Annealed importance sampling of log Z by Gibbs sweeps, and the classes of its estimates."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from eblvm_lit.core.ranges import AtLeastTwo
from eblvm_lit.core.tensors import smoothed_mean
from eblvm_lit.energies.binary_layers import BinaryEnergy, flip
from eblvm_lit.energies.grbm import GRBM
from eblvm_lit.utils.progress import progress_bar

__all__ = [
    "AIS",
    "KEY",
    "AISEstimate",
    "BinaryPath",
    "GaussianPath",
    "Sandwich",
    "estimate_from_log_weights",
    "reversed_estimate",
]

KEY = "callbacks.evaluation.metrics.log_likelihood"  # the key of the metric, for messages
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


def estimate_from_log_weights(
    log_weights: Tensor, log_z_base: float, *, advice: str = f"Raise {KEY}.n_betas."
) -> AISEstimate:
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
            "more than its standard error says. %s If the size is nan, the model's energy is not finite everywhere.",
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


class Path(ABC):
    r"""A path of distributions p_beta from a base (beta = 0) to a model (beta = 1), and chains that move along it.

    The chains keep the units of one group; the units of the other group, with the activations z, are summed out:

    .. math:: \log \tilde p_\beta = \dots + \sum_j \log(1 + e^{n_j(\beta) + \beta z_j})

    Attributes:
        log_z_base: The exact log Z of the base.
    """

    log_z_base: float

    @abstractmethod
    def start(self, n: int, generator: torch.Generator, *, exact: bool) -> None:
        """Start n chains at samples of the base or, if ``exact``, at exact samples of the model."""

    @abstractmethod
    def log_ratio(self, before: float, after: float) -> Tensor:
        """Compute the log-ratio of the unnormalised densities at two beta, after to before, float64, shape (n,)."""

    @abstractmethod
    def sweep(self, beta: float, generator: torch.Generator) -> None:
        """Move the chains by a Gibbs sweep that leaves p_beta invariant."""


class GaussianPath(Path):
    r"""The path of a GRBM with the parameters beta W and beta c, and the same b and sigma at every beta.

    At beta = 0, v and h are independent, v ~ N(b, sigma^2) and h uniform: :math:`Z_0 = (2\pi)^{d/2} 2^m \prod_i
    \sigma_i`. The activations are :math:`z = c + U^\top v`.
    """

    def __init__(self, energy: GRBM) -> None:
        self.energy = energy
        self.U = energy.coupling()
        self.std = energy.visible_std()
        # at inverse temperature beta, v given h has the mean b + beta h @ pull
        self.pull = (self.std.square().unsqueeze(-1) * self.U).T.contiguous()
        gaussian = float(self.std.detach().double().log().sum()) + 0.5 * self.std.numel() * math.log(2 * math.pi)
        self.log_z_base = gaussian + energy.h_dim * math.log(2)

    def start(self, n: int, generator: torch.Generator, *, exact: bool) -> None:
        """Start n chains; see :meth:`Path.start`."""
        b = self.energy.b
        self.v = b.new_empty(n, len(b))
        if exact:
            self.v.copy_(self.energy.sample_exact(n, generator))
        else:
            self.v.normal_(generator=generator).mul_(self.std).add_(b)
        self.z = torch.addmm(self.energy.c, self.v, self.U)

    def log_ratio(self, before: float, after: float) -> Tensor:
        """Compute the log-ratio; the quadratic part of the free energy F does not depend on beta, and cancels."""
        return (softplus(after * self.z) - softplus(before * self.z)).sum(-1, dtype=torch.float64)

    def sweep(self, beta: float, generator: torch.Generator) -> None:
        """Draw h given v, and v given h."""
        h = flip(beta * self.z, generator)
        self.v.normal_(generator=generator).mul_(self.std).add_(self.energy.b).addmm_(h, self.pull, alpha=beta)
        torch.addmm(self.energy.c, self.v, self.U, out=self.z)


class BinaryPath(Path):
    r"""The path of a model of bits with the couplings beta U, and biases between those of the base and of the model.

    .. math:: a(\beta) = (1 - \beta) a_0 + \beta a, \quad n(\beta) = (1 - \beta) n_0 + \beta n, \qquad
        \log Z_0 = -e + \sum_i \log(1 + e^{a_{0i}}) + \sum_j \log(1 + e^{n_{0j}})

    The base has latents that are 1 with probability 1/2, and independent v with the means of the given examples, or
    with the model's own biases if there are no examples. Reference: Salakhutdinov and Murray 2008, section 4.2
    (the base-rate model); Salakhutdinov and Hinton 2009, section 3.3, whose chains of a DBM also keep only h_1.
    """

    def __init__(self, energy: BinaryEnergy, v: Tensor | None) -> None:
        self.energy = energy
        layers = energy.layers()
        b = energy.visible_of(layers.a, layers.n) if v is None else smoothed_mean([v]).logit().to(energy.b)
        self.layers = layers
        self.a, self.n = energy.base_biases(b)
        self.log_z_base = sum(float(softplus(biases.double()).sum()) for biases in (self.a, self.n)) - float(layers.e)

    def start(self, n: int, generator: torch.Generator, *, exact: bool) -> None:
        """Start n chains; see :meth:`Path.start`."""
        self.x = self.energy.sample_layers(n, generator)[0] if exact else flip(self.a.repeat(n, 1), generator)
        self.z = self.x @ self.layers.U

    def log_ratio(self, before: float, after: float) -> Tensor:
        """Compute the log-ratio; see :meth:`Path.log_ratio`."""
        first = torch.lerp(self.n, self.layers.n, before) + before * self.z
        last = torch.lerp(self.n, self.layers.n, after) + after * self.z
        of_x = (after - before) * (self.x @ (self.layers.a - self.a)).double()
        return of_x + (softplus(last) - softplus(first)).sum(-1, dtype=torch.float64)

    def sweep(self, beta: float, generator: torch.Generator) -> None:
        """Draw y given x, and x given y."""
        y = flip(torch.lerp(self.n, self.layers.n, beta) + beta * self.z, generator)
        logits = torch.lerp(self.a, self.layers.a, beta)
        self.x = flip(torch.addmm(logits, y, self.layers.U.T, alpha=beta), generator)
        torch.mm(self.x, self.layers.U, out=self.z)


def path_of(energy: GRBM | BinaryEnergy, v: Tensor | None) -> Path:
    """Return the path to a model, whose base has the means of the examples v (n, d) if the model is one of bits."""
    return BinaryPath(energy, v) if isinstance(energy, BinaryEnergy) else GaussianPath(energy)


class AIS:
    r"""Annealed importance sampling by Gibbs sweeps, for a GRBM, an RBM or a DBM.

    A chain starts with a sample of a base whose Z_0 is known, makes one Gibbs sweep at each beta_k between 0 and 1, and
    accumulates

    .. math:: \log w = \sum_k \log \tilde p_{\beta_k}(x_k) - \log \tilde p_{\beta_{k-1}}(x_k)

    where x are the units of one group: v, or h_1 of a DBM. For a GRBM and an RBM, :math:`\log \tilde p = -F`.
    :meth:`sandwich` also runs chains backwards, from exact samples of the model to the base with the same sweeps; their
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

    def __init__(self, *, n_chains: AtLeastTwo = 2000, n_betas: AtLeastTwo = 2000) -> None:
        self.n_chains = n_chains
        self.n_betas = n_betas

    @staticmethod
    def supports(energy: object) -> bool:
        """Return whether the energy is a GRBM, or one of bits in two coupled groups."""
        return isinstance(energy, GRBM | BinaryEnergy)

    @torch.no_grad()
    def estimate(self, energy: GRBM | BinaryEnergy, generator: torch.Generator, v: Tensor | None = None) -> AISEstimate:
        """Estimate log Z with chains from the base distribution to the model.

        Args:
            energy: The model. Chains run in its floating-point type and on its device; log weights are float64.
            generator: Source of all randomness, on the energy's device.
            v: Examples, shape (n, d), whose means are those of the base of an RBM or a DBM; may be None.
        """
        path = path_of(energy, v)
        return estimate_from_log_weights(self.log_weights(path, generator), path.log_z_base)

    @torch.no_grad()
    def sandwich(self, energy: GRBM | BinaryEnergy, generator: torch.Generator, v: Tensor | None = None) -> Sandwich:
        """Estimate log Z from below and from above, with forward and reversed chains.

        The reversed chains start at exact samples of the model. The arguments are the same as in :meth:`estimate`.
        """
        path = path_of(energy, v)
        up = self.log_weights(path, generator)
        down = self.log_weights(path, generator, backward=True)
        return Sandwich(estimate_from_log_weights(up, path.log_z_base), reversed_estimate(down, path.log_z_base))

    @torch.no_grad()
    def log_weights(self, path: Path, generator: torch.Generator, *, backward: bool = False) -> Tensor:
        """Run the chains, and return their log importance weights, shape (n_chains,), float64.

        Args:
            path: The path from the base to the model.
            generator: Source of all randomness, on the energy's device.
            backward: Whether chains go from exact samples of the model to the base, and not from the base to the model.
        """
        betas = torch.linspace(0, 1, self.n_betas, dtype=torch.float64).tolist()
        betas = betas[::-1] if backward else betas
        path.start(self.n_chains, generator, exact=backward)
        log_w = path.log_ratio(betas[0], betas[0])  # zeros
        with progress_bar("log Z by AIS", self.n_betas - 1) as on_step:
            for k in range(1, self.n_betas):
                log_w = log_w + path.log_ratio(betas[k - 1], betas[k])
                if k < self.n_betas - 1:  # no importance weight depends on a sweep at the last beta
                    path.sweep(betas[k], generator)
                on_step(1)
        return log_w
