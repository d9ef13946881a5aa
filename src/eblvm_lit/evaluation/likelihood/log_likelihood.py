"""The log-likelihood of held-out data, with an exact or an estimated partition function."""

from __future__ import annotations

import math

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.energies.base import MarginalEnergy
from eblvm_lit.energies.grbm import GRBM, GaussianBernoulliEnergy
from eblvm_lit.evaluation.base import ExampleMetric, in_float64, mean_over_rows
from eblvm_lit.evaluation.likelihood.ais import AIS, AISEstimate
from eblvm_lit.methods.base import Method
from eblvm_lit.utils.quantities import Quantity

__all__ = ["ESTIMATED", "LogLikelihood", "exact_log_partition"]

LEARNED = ("learned_log_z", "learned_log_z_error", "learned_log_likelihood")  # of methods that learn log Z
ESTIMATED = ("log_z", "log_z_standard_error", "ais_effective_sample_size")  # numbers about an estimate of log Z


def _has_exact_log_partition(energy: MarginalEnergy, max_enumerated: int) -> bool:
    too_many = isinstance(energy, GRBM) and energy.h_dim > max_enumerated
    return not too_many and hasattr(energy, "log_partition")


def exact_log_partition(energy: MarginalEnergy, max_enumerated: int) -> float | None:
    """Log Z in float64, by enumeration of at most ``max_enumerated`` binary latents or in closed form.

    Returns:
        None where neither is possible; infinity where the joint cannot be normalised.

    Example:
        >>> from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
        >>> broad = GaussianLatentModel(v_dim=1, h_dim=1)
        >>> _ = torch.nn.init.constant_(broad.W, 2.0)
        >>> exact_log_partition(broad, 20), exact_log_partition(GRBM(v_dim=2, h_dim=21), 20)
        (inf, None)
    """
    if not _has_exact_log_partition(energy, max_enumerated):
        return None
    try:
        return float(in_float64(energy).log_partition())  # pyright: ignore[reportCallIssue]
    except (ValueError, torch.linalg.LinAlgError):  # pyright: ignore[reportPrivateImportUsage]
        return math.inf  # the precision is not positive definite


class LogLikelihood(
    ExampleMetric,
    emits={
        "log_likelihood": Quantity(1, "nats"),
        "log_z": Quantity(0, "nats"),
        "log_z_standard_error": Quantity(0, "nats"),
        "ais_effective_sample_size": Quantity(),
        "learned_log_z": Quantity(0, "nats"),
        "learned_log_z_error": Quantity(0, "nats"),  # it has a sign: the best is zero
        "learned_log_likelihood": Quantity(0, "nats"),  # the smaller c is by mistake, the higher
    },
):
    r"""Mean log-likelihood in nats, :math:`\frac1n \sum_i -F(v_i) - \log Z`.

    log Z is exact where the latents can be enumerated or a closed form exists; else a GRBM's is estimated by annealed
    importance sampling with Gibbs sweeps; :meth:`describe` says which. Other energies are those of
    :class:`~eblvm_lit.evaluation.likelihood.estimated_likelihood.EstimatedLogLikelihood`.
    Reference: Bao et al. 2020, section 5.1 (2000 chains, 2000 temperatures).

    Gives ``log_likelihood``; where log Z is estimated by importance sampling also ``log_z``, ``log_z_standard_error``
    and ``ais_effective_sample_size``. For a method that learns log Z as a number c (NCE, SNL) also ``learned_log_z``,
    which is c; ``learned_log_z_error``, c less the log Z above; and ``learned_log_likelihood``, with c in its place.

    Args:
        max_enumerated: Largest number of a GRBM's latents that are enumerated.
        n_chains: Chains of annealed importance sampling with Gibbs sweeps.
        n_betas: Its inverse temperatures.

    Example:
        >>> from types import SimpleNamespace
        >>> from eblvm_lit.methods.parts import MethodParts
        >>> method = SimpleNamespace(parts=MethodParts(energy=GRBM(v_dim=2, h_dim=3)))
        >>> list(LogLikelihood().compute(method, torch.zeros(5, 2), torch.Generator()))
        ['log_likelihood']
        >>> LogLikelihood().describe(method, None)
        {'log_likelihood': 'log Z by enumeration'}
    """

    def __init__(
        self, *, max_enumerated: NonNegativeInt = 20, n_chains: PositiveInt = 2000, n_betas: PositiveInt = 2000
    ) -> None:
        self.max_enumerated = max_enumerated
        self.ais = AIS(n_chains=n_chains, n_betas=n_betas)

    def estimator(self, energy: object) -> str | None:
        """How log Z is found, in words; None where it is neither known nor estimated."""
        if isinstance(energy, MarginalEnergy) and _has_exact_log_partition(energy, self.max_enumerated):
            return "enumeration" if isinstance(energy, GaussianBernoulliEnergy) else "a closed form"
        return "AIS with Gibbs sweeps" if isinstance(energy, GRBM) else None

    def describe(self, method: Method, data: ArrayDataModule) -> dict[str, str]:
        """Which estimator it is; see :meth:`Metric.describe`."""
        how = self.estimator(method.parts.energy)
        return {} if how is None else {"log_likelihood": f"log Z by {how}"}

    @torch.no_grad()
    def compute(self, method: Method, v: Tensor, generator: torch.Generator) -> dict[str, float]:
        """The mean log-likelihood of v; see :meth:`ExampleMetric.compute`."""
        energy = method.parts.energy
        if not isinstance(energy, MarginalEnergy):
            return {}
        log_z, estimate = self.log_partition(energy, generator)
        if log_z is None:
            return {}
        free_energy = in_float64(energy).free_energy
        found = mean_over_rows(lambda x: {"log_likelihood": -free_energy(x) - log_z}, v.double(), rows=1000)
        if estimate is not None:
            found |= dict(zip(ESTIMATED, estimate, strict=True))
        if method.parts.log_z is not None:
            error = float(method.parts.log_z) - log_z
            found |= dict(zip(LEARNED, (log_z + error, error, found["log_likelihood"] - error), strict=True))
        return found

    def log_partition(
        self, energy: MarginalEnergy, generator: torch.Generator
    ) -> tuple[float, AISEstimate | None] | tuple[None, None]:
        """Log Z, with the estimate where it is by importance sampling; None where it is neither known nor estimable.

        Args:
            energy: The model.
            generator: Source of the randomness of an estimate, on the energy's device.
        """
        if (log_z := exact_log_partition(energy, self.max_enumerated)) is not None:
            return log_z, None
        if not isinstance(energy, GRBM):
            return None, None
        estimate = self.ais.estimate(energy, generator)
        return estimate.log_z, estimate
