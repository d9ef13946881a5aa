"""The exact score-matching loss on held-out data, which is the Fisher divergence up to a constant of the data."""

from __future__ import annotations

import torch
from pydantic import PositiveInt
from torch import Tensor

from eblvm_lit.core.tensors import in_float64
from eblvm_lit.energies.base import MarginalEnergy
from eblvm_lit.evaluation.base import ExampleMetric, mean_over_rows
from eblvm_lit.methods.base import Method
from eblvm_lit.objectives.sm import SM
from eblvm_lit.scores.exact import ExactScore
from eblvm_lit.utils.quantities import Quantity

__all__ = ["FisherScore"]


class FisherScore(
    ExampleMetric,
    emits={"fisher": Quantity(-1, "", "the score-matching loss: the Fisher divergence minus a constant of the data")},
):
    r"""The mean score-matching loss ``fisher`` of the exact marginal p(v); it may be negative, and lower is better.

    .. math:: \frac1n \sum_i \tfrac12 \|s(v_i)\|^2 + \nabla_v \cdot s(v_i)
        = \tfrac12 E\|s(v) - \nabla_v \log p_D(v)\|^2 - \tfrac12 E\|\nabla_v \log p_D(v)\|^2

    It applies to energies of real v with a tractable free energy. The energies of BiDVL are left out: their networks
    have (leaky) ReLUs, so that the score jumps, and its divergence is not the sum of second derivatives. Reference:
    Hyvarinen 2005, Theorem 1; Bao et al. 2020, section 5.1, who estimate the divergence of the score with one random
    projection per example; here it is exact.

    Args:
        max_differentiated: Largest number of dimensions of v for which the divergence of the score is computed by
            differentiating once per dimension. For larger v the metric applies only to energies with a closed form of
            this divergence.

    Example:
        >>> from types import SimpleNamespace
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.methods.parts import MethodParts
        >>> method = SimpleNamespace(parts=MethodParts(energy=GRBM(v_dim=2, h_dim=3)))
        >>> list(FisherScore().compute(method, torch.zeros(5, 2), torch.Generator()))
        ['fisher']
    """

    needs = (
        "a tractable F(v) of real v, whose score has no jumps; above 100 dimensions only models with a closed form, "
        "such as a GRBM"
    )

    def __init__(self, *, max_differentiated: PositiveInt = 100) -> None:
        self.max_differentiated = max_differentiated

    @torch.no_grad()
    def compute(self, method: Method, v: Tensor, generator: torch.Generator) -> dict[str, float]:
        """Compute the mean loss of the examples v; see :meth:`ExampleMetric.compute`."""
        energy = method.parts.energy
        if not isinstance(energy, MarginalEnergy) or energy.binary_visible or not energy.smooth:
            return {}
        closed_form = type(energy).score_divergence is not MarginalEnergy.score_divergence
        if not closed_form and v[0].numel() > self.max_differentiated:
            return {}
        score = ExactScore(in_float64(energy))
        rows = 1000 if closed_form else 100
        return mean_over_rows(lambda x: {"fisher": SM().loss(score, x, {})}, v.double(), rows)
