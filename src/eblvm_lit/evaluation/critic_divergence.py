"""The Fisher divergence that a critic estimates, and the exact divergence if the density of the data is known."""

from __future__ import annotations

import torch
from torch import Tensor

from eblvm_lit.core.tensors import in_float64, sum_event
from eblvm_lit.energies.base import MarginalEnergy
from eblvm_lit.evaluation.base import ExampleMetric, mean_over_rows
from eblvm_lit.methods.base import Method
from eblvm_lit.methods.critics import FisherCritic
from eblvm_lit.utils.quantities import Quantity

__all__ = ["CriticDivergence"]

ROWS = 1000


class CriticDivergence(
    ExampleMetric,
    emits={
        # Neither higher nor lower is better: a better critic raises this lower bound, and a better model lowers it.
        "fisher_divergence": Quantity(
            0, "", "the critic's lower bound of the Fisher divergence of the model from the data"
        ),
        # Neither higher nor lower is better: the exact divergence depends on the given model, not on the critic.
        "fisher_divergence_true": Quantity(
            0, "", "the exact Fisher divergence, where the density of the data is known"
        ),
        "fisher_divergence_relative_error": Quantity(-1, "", "the relative error of the critic's bound"),
    },
):
    r"""The Fisher divergence of a model from data, as estimated by a trained critic: ``fisher_divergence``.

    The estimate is the mean of :meth:`FisherCritic.bracket` over the examples, a lower bound. The metric applies to
    methods that train such a critic. If the distribution of the data is given and the model has a tractable marginal,
    the metric also computes the exact divergence, ``fisher_divergence_true``, and, unless that is 0, the estimate's
    relative error, ``fisher_divergence_relative_error``.

    .. math:: D_F = \frac1n \sum_i \tfrac12 \|s_D(v_i) - s_\theta(v_i)\|^2

    Reference: Bao et al. 2021, appendix F.3.

    Args:
        data_energy: The energy that defines the distribution of the data; null if it is not known.

    Example:
        >>> from eblvm_lit.energies.perturbed import PerturbedGRBM
        >>> from eblvm_lit.methods.critics import FisherCritic
        >>> from eblvm_lit.networks.vector_field import VectorField
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> truth, model = (PerturbedGRBM(v_dim=2, h_dim=3, perturbation=p) for p in (0.0, 1.0))
        >>> method = FisherCritic(energy=model, critic=VectorField(v_dim=2), optimizer=Adam(lr=1e-3))
        >>> metric, v = CriticDivergence(data_energy=truth), torch.randn(100, 2)
        >>> list(metric.compute(method, v, torch.Generator()))
        ['fisher_divergence', 'fisher_divergence_true', 'fisher_divergence_relative_error']
    """

    needs = "`method=fisher_critic` and `vages_fisher`"

    def __init__(self, *, data_energy: MarginalEnergy | None = None) -> None:
        self.data_energy = data_energy

    @torch.no_grad()
    def compute(self, method: Method, v: Tensor, generator: torch.Generator) -> dict[str, float]:
        """Compute the critic's estimate and the exact divergence at v; see :meth:`ExampleMetric.compute`."""
        if not isinstance(method, FisherCritic):
            return {}
        found = mean_over_rows(lambda x: {"fisher_divergence": method.bracket(x, generator)}, v, ROWS)
        if self.data_energy is None or not isinstance(method.energy, MarginalEnergy):
            return found
        data = in_float64(self.data_energy).to(v.device)
        model = in_float64(method.energy)

        def divergence(x: Tensor) -> dict[str, Tensor]:
            return {"fisher_divergence_true": 0.5 * sum_event((data.score(x) - model.score(x)).square())}

        found |= mean_over_rows(divergence, v.double(), ROWS)
        truth = found["fisher_divergence_true"]
        if truth > 0:
            found["fisher_divergence_relative_error"] = abs(found["fisher_divergence"] - truth) / truth
        return found
