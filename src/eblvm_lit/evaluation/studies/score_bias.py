"""The bias of VaES and VaGES as a function of the divergence of q(h|v) from the true posterior p(h|v)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from matplotlib.figure import Figure
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from eblvm_lit.core.tensors import in_float64
from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
from eblvm_lit.energies.grbm import GRBM
from eblvm_lit.evaluation.base import ExampleMetric
from eblvm_lit.evaluation.latent_distributions import (
    BernoulliLatents,
    GaussianLatents,
    IndependentLatents,
    closed_divergences,
    latent_distribution,
)
from eblvm_lit.evaluation.studies.score_bias_table import ScoreBiasTable
from eblvm_lit.methods.base import Method
from eblvm_lit.utils.quantities import Quantity

__all__ = ["ScoreBias", "bias_bounds", "bias_norms"]


class MeanVariance(NamedTuple):
    """The mean and the variance of H independent latents, each of shape (H,)."""

    mean: Tensor
    variance: Tensor


def bias_norms(coupling: Tensor, v: Tensor, p: MeanVariance, q: MeanVariance) -> tuple[Tensor, Tensor]:
    r"""Compute the norms of the biases of VaES and VaGES at one v if the energy couples v and h by :math:`-v^\top U h`.

    Let :math:`\Delta` be the differences between the means of h under q and p, and :math:`\Gamma` those between the
    variances. The estimated score has the error :math:`U \Delta`. The i-th component of the score's derivative with
    respect to :math:`c_j` has the error :math:`U_{ij} \Gamma_j`, and that with respect to :math:`U_{kj}` the error
    :math:`v_k U_{ij} \Gamma_j + \delta_{ik} \Delta_j`. Derivatives with respect to other parameters are exact.

    Args:
        coupling: The coupling U, shape (d, H).
        v: The example, shape (d,).
        p: Mean and variance of h under p(h|v).
        q: Mean and variance of h under q(h|v).

    Returns:
        The norm of VaES' bias, a vector, and of VaGES' bias, the tensor of derivatives with respect to (U, c).

    Example:
        >>> zero, one = torch.zeros(1), torch.ones(1)
        >>> [x.item() for x in bias_norms(torch.ones(1, 1), 2 * one, MeanVariance(zero, one), MeanVariance(one, one))]
        [1.0, 1.0]
    """
    shift = q.mean - p.mean
    spread = q.variance - p.variance
    scaled = coupling * spread
    square = (1 + v.square().sum()) * scaled.square().sum() + 2 * (v @ scaled * shift).sum()
    return (coupling @ shift).norm(), (square + len(v) * shift.square().sum()).clamp(min=0).sqrt()


def bias_bounds(coupling: Tensor, v: Tensor, kl: Tensor, *, binary: bool) -> tuple[Tensor, Tensor]:
    r"""Compute upper bounds of the biases of VaES and VaGES from KL(q || p).

    If the KL divergence is small, both bounds are proportional to :math:`\sqrt{\mathrm{KL}}`. The differences of means
    and variances are bounded for binary latents by Pinsker's inequality,
    :math:`|\Gamma_j| \le |\Delta_j|, \|\Delta\|^2 \le \mathrm{KL} / 2`; and for normal latents with
    :math:`p = N(m, I)` by :math:`\|\Delta\|^2 \le 2\,\mathrm{KL}` and
    :math:`\|\Gamma\| \le 2\,\mathrm{KL} + 2 \sqrt{\mathrm{KL}^2 + \mathrm{KL}}`. These are the bounds of Bao et al.
    2021, Theorems 1 and 2, with explicit constants.

    Args:
        coupling: The coupling U, shape (d, H).
        v: The example, shape (d,).
        kl: KL(q(h|v) || p(h|v)), a scalar.
        binary: Whether latents are binary; if false, they are normal.

    Returns:
        Upper bounds of the two norms that :func:`bias_norms` returns.

    Example:
        >>> [round(x.item(), 3) for x in bias_bounds(torch.ones(1, 1), torch.zeros(1), torch.tensor(0.5), binary=True)]
        [0.5, 1.0]
    """
    shift = (kl / 2 if binary else 2 * kl).sqrt()
    spread = shift if binary else 2 * kl + 2 * (kl.square() + kl).sqrt()
    widest = coupling.norm(dim=0).max()
    vages = (1 + v.square().sum()).sqrt() * widest * spread + math.sqrt(len(v)) * shift
    return torch.linalg.matrix_norm(coupling, ord=2) * shift, vages


class ScoreBias(
    ExampleMetric,
    # neither higher nor lower is better, because the numbers are points and slopes of curves
    emits={
        "score_bias_kl_*": Quantity(0, "nats", "the KL divergence of q from p at one size of the perturbation"),
        "score_bias_*": Quantity(0, "", "a bias, a divergence, a bound, or the slope of a bias against a divergence"),
    },
):
    r"""The biases of VaES and VaGES at one v, and the divergences of q from p, all in closed form.

    q equals p(h|v) except for noise of size t on its parameters, for several sizes t. For the i-th size the metric
    computes ``score_bias_vaes_t<i>``, ``score_bias_vages_t<i>``, ``score_bias_kl_t<i>`` and, for normal latents,
    ``score_bias_fisher_t<i>``, geometric means over several perturbations. The names of the upper bounds have
    ``_bound`` after ``vaes`` or ``vages``. ``score_bias_slope_...`` are slopes of the biases against the divergences in
    logarithmic axes. ``score_bias_bound_ratio`` is the largest ratio of a bias to its bound, at most 1. Reference: Bao
    et al. 2021, appendix F.4.

    Args:
        levels: The sizes t of the noise.
        n_repeats: Number of perturbations of each size.
        example: Index, in the split, of the example v.

    Attributes:
        table: The results of the last evaluation; None before the first.

    Example:
        >>> from types import SimpleNamespace
        >>> from eblvm_lit.methods.parts import MethodParts
        >>> from eblvm_lit.posteriors.bernoulli import BernoulliPosterior
        >>> parts = MethodParts(energy=GRBM(v_dim=2, h_dim=3), posterior=BernoulliPosterior(v_dim=2, h_dim=3))
        >>> method = SimpleNamespace(parts=parts)
        >>> found = ScoreBias(levels=[1e-3, 1e-2]).compute(method, torch.ones(1, 2), torch.Generator())
        >>> found["score_bias_slope_vaes_kl"] > 0.45, found["score_bias_bound_ratio"] < 1
        (True, True)
    """

    needs = "a GRBM or a Gaussian model with a posterior"
    collective = True  # every process computes the table, because the process that draws the figure needs it

    def __init__(
        self,
        *,
        levels: Sequence[PositiveFloat] = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1),
        n_repeats: PositiveInt = 20,
        example: NonNegativeInt = 0,
    ) -> None:
        self.levels = sorted(levels)
        self.n_repeats = n_repeats
        self.example = example
        self.table: ScoreBiasTable | None = None

    def applies(self, method: Method, data: ArrayDataModule) -> bool:
        """Return whether the metric applies to a method and its data; see :meth:`Metric.applies`."""
        return isinstance(method.parts.energy, GRBM | GaussianLatentModel) and method.parts.posterior is not None

    @torch.no_grad()
    def compute(self, method: Method, v: Tensor, generator: torch.Generator) -> dict[str, float]:
        """Compute the biases, divergences, bounds and slopes; see :meth:`ExampleMetric.compute`."""
        energy = in_float64(cast(GRBM | GaussianLatentModel, method.parts.energy))
        v = v[self.example].double()
        coupling = energy.coupling() if isinstance(energy, GRBM) else energy.W
        p = cast(IndependentLatents, latent_distribution(energy, v.unsqueeze(0)))
        # The same random perturbations are multiplied by each size t, so that the results differ only because of t.
        shape = (self.n_repeats, 2, energy.h_dim)
        directions = torch.randn(shape, generator=generator, dtype=v.dtype, device=v.device)
        curves: dict[str, list[float]] = {}
        worst = 0.0
        for t in self.levels:
            rows = [self._measure(coupling, v, p, t * direction) for direction in directions]
            worst = max(worst, *(row[name] / row[f"{name}_bound"] for row in rows for name in ("vaes", "vages")))
            for name in rows[0]:
                logs = torch.tensor([row[name] for row in rows]).log()
                curves.setdefault(name, []).append(float(logs.mean().exp()))
        self.table = ScoreBiasTable(curves, worst)
        return self.table.metrics()

    def figure(self) -> Figure | None:
        """Plot the results of the last evaluation; see :meth:`Metric.figure`."""
        return None if self.table is None else self.table.figure()

    @staticmethod
    def _measure(coupling: Tensor, v: Tensor, p: IndependentLatents, direction: Tensor) -> dict[str, float]:
        """Compute the biases, their bounds and the divergences for one perturbation of the posterior's parameters."""
        q = _perturbed(p, v, direction)
        divergences = {k.removeprefix("posterior_"): float(x) for k, x in (closed_divergences(q, p) or {}).items()}
        vaes, vages = bias_norms(coupling, v, _mean_variance(p), _mean_variance(q))
        kl = torch.tensor(divergences["kl"], dtype=v.dtype, device=v.device)
        bounds = bias_bounds(coupling, v, kl, binary=isinstance(p, BernoulliLatents))
        found = {"vaes": vaes, "vages": vages, "vaes_bound": bounds[0], "vages_bound": bounds[1]}
        return {**{name: float(x) for name, x in found.items()}, **divergences}


def _mean_variance(h: IndependentLatents) -> MeanVariance:
    if isinstance(h, BernoulliLatents):
        mean = h.logits.squeeze(0).sigmoid()
        return MeanVariance(mean, mean * (1 - mean))
    mean = h.mean.squeeze(0)
    return MeanVariance(mean, (2 * h.log_std).exp().expand(1, len(mean)).squeeze(0))


def _perturbed(p: IndependentLatents, v: Tensor, direction: Tensor) -> IndependentLatents:
    """Return q(h|v) of a linear posterior whose parameters are perturbed; without the perturbation it equals p(h|v)."""
    # Noise t N(0, 1) on each weight and bias of an output unit shifts the output by t sqrt(1 + |v|^2) N(0, 1).
    shift = (1 + v.square().sum()).sqrt() * direction[0]
    if isinstance(p, BernoulliLatents):
        return BernoulliLatents(p.logits + shift)
    return GaussianLatents(p.mean + shift, p.log_std + direction[1].unsqueeze(0))
