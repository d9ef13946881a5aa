"""A metric: the length of the score."""

from typing import cast

import torch
from torch import Tensor

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.energies.base import MarginalEnergy
from eblvm_lit.evaluation.base import ExampleMetric
from eblvm_lit.methods.base import Method
from eblvm_lit.utils.quantities import Quantity


class ScoreNorm(ExampleMetric, emits={"score_norm": Quantity(0, "per unit of v")}):
    """The mean norm of the score, for energies with a free energy."""

    def applies(self, method: Method, data: ArrayDataModule) -> bool:
        """Return whether the energy has a score."""
        return isinstance(method.parts.energy, MarginalEnergy)

    def compute(self, method: Method, v: Tensor, generator: torch.Generator) -> dict[str, float]:
        """Compute the metric for v, shape (n, *event)."""
        energy = cast(MarginalEnergy, method.parts.energy)
        return {"score_norm": energy.score(v).flatten(1).norm(dim=1).mean().item()}
