"""Stochastic lower and upper bounds of a model's log Z, as a test of an estimator's settings."""

from __future__ import annotations

from typing import Any, cast

import torch
from pydantic import NonNegativeInt
from torch import Tensor

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.energies.base import Energy
from eblvm_lit.evaluation.base import ExampleMetric
from eblvm_lit.evaluation.likelihood.ais import AIS
from eblvm_lit.evaluation.likelihood.hamiltonian_ais import HamiltonianAIS
from eblvm_lit.methods.base import Method
from eblvm_lit.utils.quantities import Quantity

__all__ = ["LogPartitionSandwich"]

SIDES = ("log_z_lower", "log_z_upper")
NAMES = (  # for each side, the metric names of AISEstimate's fields
    (SIDES[0], f"{SIDES[0]}_standard_error", "forward_ais_effective_sample_size"),
    (SIDES[1], f"{SIDES[1]}_standard_error", "backward_ais_effective_sample_size"),
)


class LogPartitionSandwich(
    ExampleMetric,
    emits={
        "log_z_lower": Quantity(0, "nats", "an estimate of log Z that is on average too small"),
        "log_z_upper": Quantity(0, "nats", "an estimate of log Z that is on average too large"),
        **{f"{side}_standard_error": Quantity(0, "nats", "the standard error of this estimate") for side in SIDES},
        "forward_ais_effective_sample_size": Quantity(
            0, "chains", "how many equal weights the lower estimate is worth"
        ),
        "backward_ais_effective_sample_size": Quantity(
            0, "chains", "how many equal weights the upper estimate is worth"
        ),
    },
):
    r"""Stochastic bounds of log Z on both sides (a sandwich), by annealed importance sampling in both directions.

    .. math:: E[\log \hat Z_{\text{forward}}] \le \log Z \le E[\log \hat Z_{\text{backward}}]

    Forward chains start at samples of the base, backward chains at exact samples of the model. If the two sides agree,
    the estimator can be trusted for models like this one; if they do not, it needs more temperatures. The metric
    applies to models with exact samples: Gaussian models, and models with binary latents that can be enumerated.
    Reference: Grosse et al. 2015, arXiv 1511.02543 (bidirectional Monte Carlo).

    It computes ``log_z_lower`` and ``log_z_upper``, each with its standard error and effective sample size.

    Args:
        ais: The estimator: ``AIS``, with Gibbs sweeps for a GRBM, an RBM or a DBM, or ``HamiltonianAIS``.
        max_enumerated: Largest number of binary units that are enumerated to draw exact samples.

    Example:
        >>> from types import SimpleNamespace
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.methods.parts import MethodParts
        >>> method = SimpleNamespace(parts=MethodParts(energy=GRBM(v_dim=2, h_dim=3)))
        >>> sandwich = LogPartitionSandwich(ais=AIS(n_chains=50, n_betas=5))
        >>> list(sandwich.compute(method, torch.zeros(5, 2), torch.Generator()))[::3]
        ['log_z_lower', 'log_z_upper']
    """

    needs = "models with exact samples: Gaussian models, and binary latents that can be enumerated"

    def __init__(self, *, ais: AIS | HamiltonianAIS, max_enumerated: NonNegativeInt = 20) -> None:
        self.ais = ais
        self.max_enumerated = max_enumerated

    def applies(self, method: Method, data: ArrayDataModule) -> bool:
        """Return whether the metric applies to a method and its data; see :meth:`Metric.applies`."""
        energy = method.parts.energy
        if not isinstance(energy, Energy) or not hasattr(energy, "sample_exact"):
            return False
        return self.ais.supports(energy) and energy.n_enumerated <= self.max_enumerated

    def describe(self, method: Method, data: ArrayDataModule) -> dict[str, str]:
        """Describe the estimator and the moves of its chains; see :meth:`Metric.describe`."""
        kind = "Gibbs sweeps" if isinstance(self.ais, AIS) else "Hamiltonian moves"
        return dict.fromkeys(SIDES, f"AIS with {kind}") if self.applies(method, data) else {}

    @torch.no_grad()
    def compute(self, method: Method, v: Tensor, generator: torch.Generator) -> dict[str, float]:
        """Compute the lower and the upper bound of log Z; see :meth:`ExampleMetric.compute`."""
        energy = cast(Any, method.parts.energy)
        ais = self.ais
        found = ais.sandwich(energy, generator, v) if isinstance(ais, AIS) else ais.sandwich(energy, v, generator)
        lower, upper = (dict(zip(names, side, strict=True)) for names, side in zip(NAMES, found, strict=True))
        return lower | upper
