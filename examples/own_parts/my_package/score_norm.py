"""A metric: the length of the score."""

import torch
from torch import Tensor

from eblvm_lit.energies.base import MarginalEnergy
from eblvm_lit.evaluation.base import ExampleMetric
from eblvm_lit.methods.base import Method
from eblvm_lit.utils.quantities import Quantity


class ScoreNorm(ExampleMetric, emits={"score_norm": Quantity(0, "per unit of v")}):
    """The mean norm of the score, of energies with a free energy."""

    def compute(self, method: Method, v: Tensor, generator: torch.Generator) -> dict[str, float]:
        """The number for v, shape (n, *event)."""
        energy = method.parts.energy
        if not isinstance(energy, MarginalEnergy):
            return {}
        return {"score_norm": energy.score(v).flatten(1).norm(dim=1).mean().item()}
