"""The log Z of a model that knows the noise level, estimated by importance sampling at the largest noise level."""

from __future__ import annotations

from typing import cast

import torch
from pydantic import PositiveInt
from torch import Tensor

from eblvm_lit.core.tensors import by_rows, in_float64
from eblvm_lit.divergences.kl import importance_weighted_bound
from eblvm_lit.energies.base import Energy, MarginalEnergy
from eblvm_lit.energies.noise_conditional import AtLevel, MarginalAtLevel
from eblvm_lit.evaluation.likelihood.ais import KEY, AISEstimate, estimate_from_log_weights
from eblvm_lit.posteriors.at_every_level import PosteriorAtLevel
from eblvm_lit.posteriors.base import Posterior

__all__ = ["OwnLogPartition"]

ROWS = 1000  # the largest number of examples whose free energies are computed at a time
PAIRS = 2**17  # the largest number of pairs of an example and a latent whose energies are computed at a time


class OwnLogPartition:
    r"""The log Z of a model that knows the noise level, estimated at the largest level without annealing or a grid.

    .. math:: \log p(v) = -F(v, t_{min}) - \log Z(t_{max}), \quad
        Z(t_{max}) = E_{\tilde v \sim e^{-F_0}} \exp\bigl(F_0(\tilde v, t_{max}) - F(\tilde v, t_{max})\bigr)

    At the largest level noised data have almost the distribution of the reference :math:`e^{-F_0}`, a known normal
    distribution, and importance sampling from the reference is accurate. Dual score matching trains the derivative of
    F with respect to the level to be the derivative for noised data. If it is, then Z is the same at every level. This
    class cannot check it: compare with log Z at the smallest level by quadrature or annealing (``own_log_z_error`` of
    :class:`~eblvm_lit.evaluation.likelihood.log_likelihood.LogLikelihood`).

    With latents, exp(-F) is replaced by the mean of :math:`\exp(-E(\tilde v, h)) / q(h|\tilde v)` over latents of the
    posterior at the level. The estimate of Z is then unbiased, so that the mean of the estimate of log Z is at most log
    Z. This makes the log-likelihood too large by about half of the squared standard error of log Z. The estimate of
    F(v) of an example is the importance-weighted bound, whose mean is at least F(v) (Burda et al. 2016, Eq. 8). This
    makes the log-likelihood too small. Computations are in float64.

    Args:
        n_samples: The number of samples of the reference.
        n_particles: The number of latents of each example and of each sample, if F is not tractable.

    Example:
        >>> from eblvm_lit.core.noise_levels import NoiseRange
        >>> from eblvm_lit.energies.mlp_energy import MLPEnergy
        >>> from eblvm_lit.energies.noise_conditional import NoiseConditionalFreeEnergy
        >>> inner = MLPEnergy(v_dim=3, widths=[8])
        >>> model = NoiseConditionalFreeEnergy(energy=inner, v_shape=[2], noise_range=NoiseRange()).of_data()
        >>> OwnLogPartition(n_samples=50).estimate(model, None, torch.Generator()).ess <= 50
        True
    """

    def __init__(self, *, n_samples: PositiveInt = 4000, n_particles: PositiveInt = 100) -> None:
        self.n_samples = n_samples
        self.n_particles = n_particles

    @staticmethod
    def supports(energy: object, posterior: object) -> bool:
        """Return whether the model knows the noise level, and log Z can be estimated at its largest level.

        A joint energy needs a posterior. A tractable free energy needs the same log Z at every level.

        Example:
            >>> OwnLogPartition.supports(None, None)
            False
        """
        bounded = isinstance(energy, AtLevel) and isinstance(posterior, PosteriorAtLevel)
        return bounded or (isinstance(energy, MarginalAtLevel) and energy.every_level.shares_log_z)

    @torch.no_grad()
    def estimate(
        self,
        energy: AtLevel | MarginalAtLevel,
        posterior: PosteriorAtLevel | None,
        generator: torch.Generator,
    ) -> AISEstimate:
        """Estimate log Z at the largest noise level, with its standard error and the effective sample size.

        Args:
            energy: The energy of the data, at the smallest level.
            posterior: The posterior of the data; not used if F is tractable.
            generator: Source of all randomness, on the energy's device.
        """
        every = in_float64(energy.every_level)
        q = None if posterior is None else in_float64(posterior.inner)
        shape = (self.n_samples, every.event_shape[0] - 1)
        w = every.reference.draw(shape, every.noise_range.t_max, generator)
        log_weights = every.reference.energy(w) - self._free_energy(every, q, w, generator)
        # The importance weights vary if q is narrower than p(h|v), or if the model is not normal at its largest level.
        return estimate_from_log_weights(log_weights, 0.0, advice=f"Train longer, or raise {KEY}.own.n_particles.")

    @torch.no_grad()
    def free_energy(self, energy: Energy, posterior: Posterior | None, v: Tensor, generator: torch.Generator) -> Tensor:
        """Compute the free energy F(v), shape (B,), float64, or its importance-weighted bound if F is not tractable.

        Args:
            energy: The energy of the data.
            posterior: The posterior of the data; not used if F is tractable.
            v: Examples, shape (B, *event).
            generator: Source of the latents, on the energy's device.
        """
        q = None if posterior is None else in_float64(posterior)
        return self._free_energy(in_float64(energy), q, v.double(), generator)

    def _free_energy(self, energy: Energy, q: Posterior | None, v: Tensor, generator: torch.Generator) -> Tensor:
        if isinstance(energy, MarginalEnergy):
            return by_rows(energy.free_energy, ROWS, v)

        def bound(x: Tensor) -> Tensor:
            known = cast(Posterior, q)
            noise = known.noise((self.n_particles,), x, generator)
            return importance_weighted_bound(energy, x, *known.sample_and_log_prob(x, noise))

        return by_rows(bound, PAIRS // self.n_particles, v)
