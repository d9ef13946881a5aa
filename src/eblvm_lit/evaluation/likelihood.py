"""The log-likelihood of held-out data, with an exact or an estimated partition function."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.energies.base import Energy, MarginalEnergy
from eblvm_lit.energies.grbm import GRBM, MAX_ENUMERATED, GaussianBernoulliEnergy
from eblvm_lit.errors import ConfigError
from eblvm_lit.evaluation.ais import AIS, AISEstimate
from eblvm_lit.evaluation.base import ExampleMetric, in_float64, mean_over_rows
from eblvm_lit.evaluation.hamiltonian_ais import HamiltonianAIS
from eblvm_lit.evaluation.visible_quadrature import VisibleQuadrature
from eblvm_lit.methods.base import Method

__all__ = ["LogLikelihood", "exact_log_partition"]

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


class LogLikelihood(ExampleMetric):
    r"""Mean log-likelihood in nats, :math:`\frac1n \sum_i -F(v_i) - \log Z`.

    log Z is exact where the latents can be enumerated or a closed form exists; else a GRBM's is estimated by annealed
    importance sampling with Gibbs sweeps. For other energies two estimators may be given: quadrature, where v is of one
    or two dimensions and F is tractable, and annealed importance sampling with Hamiltonian moves. The latter also
    estimates F(v_i) where it is not tractable, of as many examples as it has chains; their mean is then biased down by
    one estimate and up by the other. :meth:`describe` says which one it is.
    Reference: Bao et al. 2020, section 5.1 (2000 chains, 2000 temperatures).

    Gives ``log_likelihood``; where log Z is estimated by importance sampling also ``log_z``, ``log_z_standard_error``
    and ``ais_effective_sample_size``. For a method that learns log Z as a number c (NCE, SNL) also ``learned_log_z``,
    which is c; ``learned_log_z_error``, c less the log Z above; and ``learned_log_likelihood``, with c in its place.

    Args:
        max_enumerated: Largest number of a GRBM's latents that are enumerated.
        n_chains: Chains of annealed importance sampling with Gibbs sweeps.
        n_betas: Its inverse temperatures.
        progress: Whether it shows a progress bar.
        quadrature: For energies of one or two visible variables; None: no quadrature.
        hamiltonian_ais: For what no other estimator is for; None: not estimated.

    Raises:
        ConfigError: For a max_enumerated outside of [0, 24], or fewer than two chains or temperatures.

    Example:
        >>> from types import SimpleNamespace
        >>> from eblvm_lit.methods.base import MethodParts
        >>> method = SimpleNamespace(parts=MethodParts(energy=GRBM(v_dim=2, h_dim=3)))
        >>> list(LogLikelihood().compute(method, torch.zeros(5, 2), torch.Generator()))
        ['log_likelihood']
        >>> LogLikelihood().describe(method, None)
        {'log_likelihood': 'log Z by enumeration'}
    """

    def __init__(
        self,
        *,
        max_enumerated: int = 20,
        n_chains: int = 2000,
        n_betas: int = 2000,
        progress: bool = False,
        quadrature: VisibleQuadrature | None = None,
        hamiltonian_ais: HamiltonianAIS | None = None,
    ) -> None:
        if not 0 <= max_enumerated <= MAX_ENUMERATED:
            raise ConfigError(f"max_enumerated lies between 0 and {MAX_ENUMERATED}, not at {max_enumerated}.")
        self.max_enumerated = max_enumerated
        self.ais = AIS(n_chains=n_chains, n_betas=n_betas, progress=progress)
        self.quadrature, self.hamiltonian_ais = quadrature, hamiltonian_ais

    def estimator(self, energy: object) -> str | None:
        """How log Z is found, in words; None where it is neither known nor estimated."""
        if isinstance(energy, MarginalEnergy) and _has_exact_log_partition(energy, self.max_enumerated):
            return "enumeration" if isinstance(energy, GaussianBernoulliEnergy) else "a closed form"
        if self.quadrature is not None and self.quadrature.supports(energy):
            return "quadrature"
        if isinstance(energy, GRBM):
            return "AIS with Gibbs sweeps"
        if self.hamiltonian_ais is None or not self.hamiltonian_ais.supports(energy):
            return None
        return "AIS with Hamiltonian moves"

    def names(self, method: Method, data: ArrayDataModule) -> Sequence[str]:  # noqa: ARG002 - they are the same for all data
        """The names of the numbers; see :meth:`Metric.names`."""
        how = self.estimator(method.parts.energy)
        if how is None:
            return []
        learned = [] if method.parts.log_z is None else LEARNED
        return ["log_likelihood", *(ESTIMATED if how.startswith("AIS") else []), *learned]

    def describe(self, method: Method, data: ArrayDataModule) -> dict[str, str]:  # noqa: ARG002
        """Which estimator it is; see :meth:`Metric.describe`."""
        energy = method.parts.energy
        if (how := self.estimator(energy)) is None:
            return {}
        tractable = isinstance(energy, MarginalEnergy)
        return {"log_likelihood": f"log Z by {how}" if tractable else f"log Z and F(v) by {how}"}

    @torch.no_grad()
    def compute(self, method: Method, v: Tensor, generator: torch.Generator) -> dict[str, float]:
        """The mean log-likelihood of v; see :meth:`ExampleMetric.compute`."""
        energy = method.parts.energy
        if not isinstance(energy, Energy):
            return {}
        log_z, estimate = self.log_partition(energy, generator, v)
        if log_z is None:
            return {}
        if isinstance(energy, MarginalEnergy):
            free_energy = in_float64(energy).free_energy
            found = mean_over_rows(lambda x: {"log_likelihood": -free_energy(x) - log_z}, v.double(), rows=1000)
        else:
            ais = self.hamiltonian_ais or HamiltonianAIS()
            some = v[: ais.n_chains]
            found = {"log_likelihood": -float(ais.free_energy(energy, some, generator).mean()) - log_z}
        if estimate is not None:
            found |= dict(zip(ESTIMATED, estimate, strict=True))
        if method.parts.log_z is not None:
            error = float(method.parts.log_z) - log_z
            found |= dict(zip(LEARNED, (log_z + error, error, found["log_likelihood"] - error), strict=True))
        return found

    def log_partition(
        self, energy: Energy, generator: torch.Generator, v: Tensor | None = None
    ) -> tuple[float, AISEstimate | None] | tuple[None, None]:
        """Log Z, with the estimate where it is by importance sampling; None where it is neither known nor estimable.

        Args:
            energy: The model.
            generator: Source of the randomness of an estimate, on the energy's device.
            v: Examples, shape (n, *event), which quadrature and Hamiltonian moves need.
        """
        if isinstance(energy, MarginalEnergy):
            if (log_z := exact_log_partition(energy, self.max_enumerated)) is not None:
                return log_z, None
            if v is not None and self.quadrature is not None and self.quadrature.supports(energy):
                return self.quadrature.log_partition(in_float64(energy), v.double()), None
        if isinstance(energy, GRBM):
            estimate = self.ais.estimate(energy, generator)
        elif v is not None and self.hamiltonian_ais is not None and self.hamiltonian_ais.supports(energy):
            estimate = self.hamiltonian_ais.estimate(energy, v, generator)
        else:
            return None, None
        return estimate.log_z, estimate
