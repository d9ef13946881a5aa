"""The bias of VaES and VaGES against the divergence of the posterior from the true one."""

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
    """Mean and variance of independent latents, each of shape (H,)."""

    mean: Tensor
    variance: Tensor


def bias_norms(coupling: Tensor, v: Tensor, p: MeanVariance, q: MeanVariance) -> tuple[Tensor, Tensor]:
    r"""Norms of the biases of VaES and VaGES at one v, for an energy with the coupling :math:`-v^\top U h`.

    With the differences :math:`\Delta` of the means and :math:`\Gamma` of the variances of h under q and p, the score
    has the error :math:`U \Delta`, its derivative by :math:`c_j` the error :math:`U_{ij} \Gamma_j`, and that by
    :math:`U_{kj}` the error :math:`v_k U_{ij} \Gamma_j + \delta_{ik} \Delta_j`; all else is exact.

    Args:
        coupling: U, shape (d, H).
        v: Shape (d,).
        p: Of p(h|v).
        q: Of q(h|v).

    Returns:
        Norms of VaES' bias, a vector, and of VaGES', a tensor of derivatives by (U, c).

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
    r"""Upper bounds of the biases given KL(q||p), both proportional to :math:`\sqrt{\mathrm{KL}}` where it is small.

    The differences of means and variances are bounded by Pinsker's inequality for bits,
    :math:`|\Gamma_j| \le |\Delta_j|, \|\Delta\|^2 \le \mathrm{KL} / 2`; and for normal latents with
    :math:`p = N(m, I)` by :math:`\|\Delta\|^2 \le 2\,\mathrm{KL}` and
    :math:`\|\Gamma\| \le 2\,\mathrm{KL} + 2 \sqrt{\mathrm{KL}^2 + \mathrm{KL}}`. Made explicit from Bao et al. 2021,
    Theorems 1 and 2.

    Args:
        coupling: U, shape (d, H).
        v: Shape (d,).
        kl: KL(q(h|v) || p(h|v)), a scalar.
        binary: Whether latents are bits.

    Returns:
        Bounds on the two norms of :func:`bias_norms`.

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
    emits={"score_bias_kl_*": Quantity(0, "nats"), "score_bias_*": Quantity()},  # points and slopes of curves
):
    r"""Biases of VaES and VaGES at one v against the divergences of q from p, all in closed form.

    q starts as p(h|v), and its parameters are then perturbed with noise of growing size t. For each t, averaged over
    some perturbations (geometric means): ``score_bias_vaes_t<i>``, ``score_bias_vages_t<i>``, ``score_bias_kl_t<i>``
    and, for normal latents, ``score_bias_fisher_t<i>``; the upper bounds have ``_bound`` after the name. Slopes
    of the biases against the divergences in logarithmic axes are ``score_bias_slope_...``; and
    ``score_bias_bound_ratio`` is the largest ratio of a bias to its bound, at most 1. Reference: Bao et al. 2021,
    appendix F.4.

    Args:
        levels: The sizes t.
        n_repeats: Perturbations of each size.
        example: Which v of the split.

    Attributes:
        table: What the last evaluation found; None before it.

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

    collective = True  # every process has the table, also the one that draws it

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
        """Whether the metric applies; see :meth:`Metric.applies`."""
        return isinstance(method.parts.energy, GRBM | GaussianLatentModel) and method.parts.posterior is not None

    @torch.no_grad()
    def compute(self, method: Method, v: Tensor, generator: torch.Generator) -> dict[str, float]:
        """Biases, divergences, bounds and slopes; see :meth:`ExampleMetric.compute`."""
        energy = in_float64(cast(GRBM | GaussianLatentModel, method.parts.energy))
        v = v[self.example].double()
        coupling = energy.coupling() if isinstance(energy, GRBM) else energy.W
        p = cast(IndependentLatents, latent_distribution(energy, v.unsqueeze(0)))
        # the same directions at all levels: what differs between two of them is the level
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
        """The figure of the table; see :meth:`Metric.figure`."""
        return None if self.table is None else self.table.figure()

    @staticmethod
    def _measure(coupling: Tensor, v: Tensor, p: IndependentLatents, direction: Tensor) -> dict[str, float]:
        """Biases, bounds and divergences of one posterior, all of whose parameters are perturbed."""
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
    """The distribution at v of a linear posterior that equals p, with perturbed parameters."""
    # a row of weights and a bias, each off by t N(0, 1), move their output by t sqrt(1 + |v|^2) N(0, 1)
    shift = (1 + v.square().sum()).sqrt() * direction[0]
    if isinstance(p, BernoulliLatents):
        return BernoulliLatents(p.logits + shift)
    return GaussianLatents(p.mean + shift, p.log_std + direction[1].unsqueeze(0))
