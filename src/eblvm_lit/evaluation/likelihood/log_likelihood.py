"""The log-likelihood of held-out data, with an exact or an estimated partition function."""

from __future__ import annotations

import logging
import math
from typing import Any, cast

import torch
from pydantic import NonNegativeInt
from torch import Tensor

from eblvm_lit.core.ranges import AtLeastTwo
from eblvm_lit.core.tensors import in_float64
from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.energies.base import Energy, MarginalEnergy
from eblvm_lit.energies.binary_layers import BinaryEnergy
from eblvm_lit.energies.deep_boltzmann import DeepBoltzmannMachine
from eblvm_lit.energies.grbm import GRBM
from eblvm_lit.energies.log_partition import exact_log_partition, has_exact_log_partition
from eblvm_lit.energies.noise_conditional import AtLevel, MarginalAtLevel
from eblvm_lit.errors import ConfigError
from eblvm_lit.evaluation.base import ExampleMetric, mean_over_rows
from eblvm_lit.evaluation.likelihood.ais import AIS, AISEstimate
from eblvm_lit.evaluation.likelihood.hamiltonian_ais import HamiltonianAIS
from eblvm_lit.evaluation.likelihood.jackknife import jackknife
from eblvm_lit.evaluation.likelihood.own_log_partition import OwnLogPartition
from eblvm_lit.evaluation.likelihood.visible_quadrature import VisibleQuadrature
from eblvm_lit.methods.base import Method
from eblvm_lit.posteriors.at_every_level import PosteriorAtLevel
from eblvm_lit.posteriors.base import Posterior
from eblvm_lit.utils.quantities import Quantity

__all__ = ["ESTIMATED", "QUADRATURE", "LogLikelihood"]

log = logging.getLogger(__name__)

LEARNED = ("learned_log_z", "learned_log_z_error", "learned_log_likelihood")  # metrics of methods that learn log Z
ESTIMATED = ("log_z", "log_z_standard_error", "ais_effective_sample_size")  # metric names of AISEstimate's fields
OWN_ERROR = ("own_log_z_error", "own_log_z_error_standard_error")  # metrics of models that know the noise level
SWEEPS = "AIS with Gibbs sweeps"
QUADRATURE = "quadrature"
MOVES = "AIS with Hamiltonian moves"
OWN = "importance sampling at the largest noise level"
N_AT_VALIDATION = 1000  # the largest number of examples that a validation uses, for models that know the noise level


class LogLikelihood(
    ExampleMetric,
    emits={
        "log_likelihood": Quantity(1, "nats", "the mean of log p(v) over the split"),
        "log_likelihood_standard_error": Quantity(0, "nats", "its standard error, from the chains only"),
        "log_likelihood_error_over_examples": Quantity(0, "nats", "the standard error of the mean over examples"),
        "bits_per_dimension": Quantity(-1, "bits", "minus the mean of log2 P(bytes) of images, for each value"),
        "log_z": Quantity(0, "nats", "the estimate of log Z"),
        "log_z_standard_error": Quantity(0, "nats", "the standard error of this estimate"),
        "ais_effective_sample_size": Quantity(0, "", "how many chains of equal weight the estimate is worth"),
        # neither higher nor lower is better: the best value is 0
        "own_log_z_error": Quantity(
            0, "nats", "log Z at the largest noise level minus that at the smallest; best is 0"
        ),
        "own_log_z_error_standard_error": Quantity(0, "nats", "its standard error, if both are estimated"),
        "learned_log_z": Quantity(0, "nats", "the log Z that the method has learned"),
        # neither higher nor lower is better: the best value is 0
        "learned_log_z_error": Quantity(0, "nats", "the learned log Z minus log Z; best is 0"),
        # higher is not better: a learned log Z that is too small raises this value
        "learned_log_likelihood": Quantity(0, "nats", "the mean of log p(v) with the learned log Z"),
    },
):
    r"""The mean log-likelihood of the examples, in nats: :math:`\frac1n \sum_i -F(v_i) - \log Z`.

    log Z is computed in the first of the following ways that the energy supports, and :meth:`describe` names this way:

    1. by ``own``, at the largest noise level, if the model knows the level (Guth et al. 2025, arXiv 2506.05310);
    2. exactly, if the latents can be enumerated or a closed form exists;
    3. by annealed importance sampling with Gibbs sweeps, for a GRBM (Bao et al. 2020, section 5.1, with 2000 chains and
       2000 temperatures), and for an RBM or a DBM of binary v (Salakhutdinov and Murray 2008);
    4. by ``quadrature``, if v has one or two dimensions and F is tractable;
    5. by ``hamiltonian_ais``, annealed importance sampling with Hamiltonian moves, if all variables are real.

    If F is not tractable, the fifth way also estimates F(v_i), for as many examples as it has chains, with two chains
    per example: see :func:`~eblvm_lit.evaluation.likelihood.jackknife.jackknife`. The logarithm of a mean weight is
    biased downwards. So with few temperatures log Z is too small, which makes the log-likelihood too large, and -F is
    too small, which makes the log-likelihood too small. Reference: Neal 2001, arXiv physics/9803008.

    For a DBM, F(v_i) is replaced by an upper bound, the minimum over mean-field posteriors (Salakhutdinov and Hinton
    2009), so that the log-likelihood is a lower bound up to the error of log Z.

    For standardised data the log-likelihood is that of the data in their own units, but log Z is that of v.

    The metric computes ``log_likelihood``. If log Z is estimated by importance sampling, it adds ``log_z``,
    ``log_z_standard_error`` and ``ais_effective_sample_size``; with Hamiltonian moves also
    ``log_likelihood_standard_error``, which covers the randomness of the chains for log Z and for F, but not the choice
    of examples. For a method that learns log Z as a number c (NCE, SNL) it adds ``learned_log_z``, which is c;
    ``learned_log_z_error``, c minus the log Z above; and ``learned_log_likelihood``, the log-likelihood with c in place
    of log Z.

    For a model that knows the noise level it adds ``log_likelihood_error_over_examples``, and for images of bytes
    ``bits_per_dimension``: minus log2 of the density times the volume of one byte's values, averaged over uniform noise
    of this width on the examples, which bounds -log2 P(bytes) from above (Theis et al. 2016, arXiv 1511.01844). If
    F(v) is not tractable, both are bounds by the posterior: see
    :class:`~eblvm_lit.evaluation.likelihood.own_log_partition.OwnLogPartition`. With ``quadrature`` or
    ``hamiltonian_ais`` the test split also has ``own_log_z_error``: log Z at the largest level minus log Z at the
    smallest by one of these ways. It is zero if the levels share their normalisation, and otherwise by how much the
    log-likelihood is too small.

    Args:
        max_enumerated: Largest number of binary units for which log Z is computed by enumeration.
        n_chains: Number of chains of annealed importance sampling with Gibbs sweeps.
        n_betas: Number of inverse temperatures of annealed importance sampling with Gibbs sweeps.
        quadrature: The quadrature for energies of one or two visible variables; None turns it off.
        hamiltonian_ais: The estimator for other energies of real variables; None turns it off.
        own: The estimator for models that know the noise level; the default one if not given.

    Example:
        >>> from types import SimpleNamespace
        >>> from eblvm_lit.energies.deep import DeepVectorEnergy
        >>> from eblvm_lit.methods.parts import MethodParts
        >>> method = SimpleNamespace(parts=MethodParts(energy=GRBM(v_dim=2, h_dim=3)))
        >>> list(LogLikelihood().compute(method, torch.zeros(5, 2), torch.Generator()))
        ['log_likelihood']
        >>> LogLikelihood().describe(method, None)
        {'log_likelihood': 'log Z by enumeration'}
        >>> deep = SimpleNamespace(parts=MethodParts(energy=DeepVectorEnergy(v_dim=2, h_dim=3)))
        >>> LogLikelihood(hamiltonian_ais=HamiltonianAIS()).describe(deep, None)
        {'log_likelihood': 'log Z and F(v) by AIS with Hamiltonian moves'}
    """

    needs = "log Z in closed form, by enumeration, AIS of a GRBM, RBM or DBM, or all levels; others with `likelihood`"

    def __init__(
        self,
        *,
        max_enumerated: NonNegativeInt = 20,
        n_chains: AtLeastTwo = 2000,
        n_betas: AtLeastTwo = 2000,
        quadrature: VisibleQuadrature | None = None,
        hamiltonian_ais: HamiltonianAIS | None = None,
        own: OwnLogPartition | None = None,
    ) -> None:
        self.max_enumerated = max_enumerated
        self.ais = AIS(n_chains=n_chains, n_betas=n_betas)
        self.quadrature = quadrature
        self.hamiltonian_ais = hamiltonian_ais
        self.own = OwnLogPartition() if own is None else own

    def estimator(self, energy: object, posterior: object = None) -> str | None:
        """Describe in words how log Z is computed; return None if it can be neither computed nor estimated."""
        return OWN if self.own.supports(energy, posterior) else self.of_one_level(energy)

    def of_one_level(self, energy: object) -> str | None:
        """Describe in words how log Z is computed from one noise level only; return None if this is not possible.

        Example:
            >>> LogLikelihood().of_one_level(GRBM(v_dim=2, h_dim=3))
            'enumeration'
        """
        if isinstance(energy, MarginalEnergy | BinaryEnergy):
            if has_exact_log_partition(energy, self.max_enumerated):
                return "a closed form" if energy.continuous else "enumeration"
            if self.ais.supports(energy):
                return SWEEPS
            if self.quadrature is not None and self.quadrature.supports(energy):
                return QUADRATURE
        return MOVES if self.hamiltonian_ais is not None and self.hamiltonian_ais.supports(energy) else None

    def describe(self, method: Method, data: ArrayDataModule) -> dict[str, str]:
        """Describe how log Z is computed; see :meth:`Metric.describe`."""
        energy = method.parts.energy
        how = self.estimator(energy, method.parts.posterior)
        if how is None:
            return {}
        if isinstance(energy, MarginalEnergy):
            return {"log_likelihood": f"log Z by {how}"}
        if isinstance(energy, BinaryEnergy):
            return {"log_likelihood": f"log Z by {how}, F(v) bounded by mean field"}
        if how == OWN:
            return {"log_likelihood": f"log Z by {how}, F(v) bounded by {self.own.n_particles} latents of q"}
        return {"log_likelihood": f"log Z and F(v) by {how}"}

    def evaluate(
        self, method: Method, data: ArrayDataModule, split: str, generator: torch.Generator
    ) -> dict[str, float]:
        """Evaluate a method on a split; computations that take minutes are made only on the test split.

        The computations that take minutes are log-likelihoods by Hamiltonian moves, and log-likelihoods of images by
        models that know the noise level.
        """
        how = self.estimator(method.parts.energy, method.parts.posterior)
        if split == "val" and (how == MOVES or (how == OWN and data.image_shape is not None)):
            return {}
        found = (
            self._of_every_level(method, data, split, generator)
            if how == OWN
            else super().evaluate(method, data, split, generator)
        )
        # The density of the data in their own units is the density of v divided by the volume of one unit of v, so
        # subtract the logarithm of this volume.
        shifted = ("log_likelihood", "learned_log_likelihood")
        return {name: value - (data.log_unit_of_v if name in shifted else 0.0) for name, value in found.items()}

    def _of_every_level(
        self, method: Method, data: ArrayDataModule, split: str, generator: torch.Generator
    ) -> dict[str, float]:
        """Evaluate a model that knows the noise level; a validation uses fewer examples and does not check log Z."""
        raw = getattr(data.splits, split)[: N_AT_VALIDATION if split == "val" else None]
        v = data.as_float(raw).to(device=method.device, dtype=method.dtype)
        found = self.compute(method, v, generator)
        if split == "val":
            return found
        energy = cast(AtLevel, method.parts.energy)
        own = AISEstimate(*(found[name] for name in ESTIMATED))
        if data.image_shape is not None and raw.dtype == torch.uint8:
            # the difference between the values of two neighbouring bytes, in the units of v
            width = float(data.as_float(torch.tensor([0, 1], dtype=torch.uint8)).diff())
            noisy = v + width * (torch.rand(v.shape, generator=generator, dtype=v.dtype, device=v.device) - 0.5)
            mean = float(self.own.free_energy(energy, method.parts.posterior, noisy, generator).mean()) + own.log_z
            found["bits_per_dimension"] = (mean / v[0].numel() - math.log(width)) / math.log(2)
        return found | self._own_error(energy, own, v, generator)

    def _own_error(
        self, energy: AtLevel | MarginalAtLevel, own: AISEstimate, v: Tensor, generator: torch.Generator
    ) -> dict[str, float]:
        """Compute the error of the model's own log Z against quadrature or annealing at the smallest noise level."""
        try:
            log_z, annealed = self._log_partition(self.of_one_level(energy), energy, generator, v)
        except ConfigError as error:  # a model that has hardly been trained can have peaks narrower than any grid
            log.warning("own_log_z_error is left out: %s", error)
            return {}
        if log_z is None:
            return {}
        error = 0.0 if annealed is None else annealed.standard_error
        return dict(zip(OWN_ERROR, (own.log_z - log_z, math.hypot(own.standard_error, error)), strict=True))

    @torch.no_grad()
    def compute(self, method: Method, v: Tensor, generator: torch.Generator) -> dict[str, float]:
        """Compute the mean log-likelihood of the examples v; see :meth:`ExampleMetric.compute`."""
        energy = cast(Energy, method.parts.energy)
        posterior = method.parts.posterior
        how = self.estimator(energy, posterior)
        log_z, estimate = self.log_partition(energy, generator, v, posterior)
        if log_z is None:
            return {}
        error = 0.0
        if how == OWN:
            log_p = -self.own.free_energy(energy, posterior, v, generator) - log_z
            over_examples = float(log_p.std(correction=0)) / math.sqrt(len(v))
            found = {"log_likelihood": float(log_p.mean()), "log_likelihood_error_over_examples": over_examples}
        elif isinstance(energy, MarginalEnergy | BinaryEnergy):
            model = cast(Any, in_float64(energy))
            free_energy = model.free_energy_bound if isinstance(model, DeepBoltzmannMachine) else model.free_energy
            found = mean_over_rows(lambda x: {"log_likelihood": -free_energy(x) - log_z}, v.double(), rows=1000)
        else:
            ais = cast(HamiltonianAIS, self.hamiltonian_ais)
            # two estimates of F for each of the first examples, as many as there are chains
            twice = torch.cat([v[: ais.n_chains]] * 2)
            mean, error = jackknife(*ais.free_energy(energy, twice, generator).chunk(2))
            found = {"log_likelihood": -mean - log_z}
        if estimate is not None:
            if how == MOVES:
                found["log_likelihood_standard_error"] = math.hypot(error, estimate.standard_error)
            found |= dict(zip(ESTIMATED, estimate, strict=True))
        if method.parts.log_z is not None:
            error = float(method.parts.log_z) - log_z
            found |= dict(zip(LEARNED, (log_z + error, error, found["log_likelihood"] - error), strict=True))
        return found

    def log_partition(
        self,
        energy: Energy,
        generator: torch.Generator,
        v: Tensor | None = None,
        posterior: Posterior | None = None,
    ) -> tuple[float, AISEstimate | None] | tuple[None, None]:
        """Compute or estimate log Z of a model.

        Args:
            energy: The model.
            generator: Source of all randomness, on the energy's device.
            v: Examples, shape (n, *event); only quadrature and Hamiltonian moves need them.
            posterior: The posterior; only joint energies that know the noise level need it.

        Returns:
            log Z, and the whole estimate if importance sampling is used, else None. Two None if log Z can be
            neither computed nor estimated.
        """
        return self._log_partition(self.estimator(energy, posterior), energy, generator, v, posterior)

    def _log_partition(
        self,
        how: str | None,
        energy: Energy,
        generator: torch.Generator,
        v: Tensor | None,
        posterior: Posterior | None = None,
    ) -> tuple[float, AISEstimate | None] | tuple[None, None]:
        if how is None or (v is None and how in (QUADRATURE, MOVES)):
            return None, None
        if how == QUADRATURE:
            marginal = in_float64(cast(MarginalEnergy, energy))
            return cast(VisibleQuadrature, self.quadrature).log_partition(marginal, cast(Tensor, v).double()), None
        if how == MOVES:
            estimate = cast(HamiltonianAIS, self.hamiltonian_ais).estimate(energy, cast(Tensor, v), generator)
        elif how == OWN:
            estimate = self.own.estimate(cast(AtLevel, energy), cast(PosteriorAtLevel, posterior), generator)
        elif how == SWEEPS:
            estimate = self.ais.estimate(cast(GRBM | BinaryEnergy, energy), generator, v)
        else:
            return cast(float, exact_log_partition(energy, self.max_enumerated)), None
        return estimate.log_z, estimate
