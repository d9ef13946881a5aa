"""Training by energy discrepancy: the energy of data against that of twice perturbed data."""

from __future__ import annotations

import math
from typing import Any, Literal, cast

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from eblvm_lit.core.functional import bind
from eblvm_lit.core.ranges import Seed
from eblvm_lit.energies.base import Energy, MarginalEnergy
from eblvm_lit.methods.loss_method import LossMethod
from eblvm_lit.methods.state import TrainState
from eblvm_lit.optimizers.base import Optimizer

__all__ = ["EnergyDiscrepancy"]


class EnergyDiscrepancy(LossMethod):
    r"""Energy discrepancy with a Gaussian perturbation: no score, no chain and no log Z.

    .. math:: L = E \log \Bigl( \frac wM + \frac1M \sum_{i=1}^M \exp\bigl( F(v) - F(u_i) \bigr) \Bigr), \quad
        u_i = v + \sigma \xi + \sigma \xi_i, \quad \xi, \xi_i \sim N(0, I)

    u_i are the negatives of v. As M grows, with w = 0, L tends to
    :math:`E[F(v)] + E \log \int N(y; u, \sigma^2 I)\, e^{-F(u)} du`, :math:`y = v + \sigma \xi`, which is least where
    exp(-F) is proportional to the density of the data, for every :math:`\sigma`. With M negatives the minimum is biased
    by O(1 / M), most with w = 0: for few negatives the loss then has no minimum (for M = 1 it is linear in F). w > 0
    bounds it from below. Reference: Schroeder et al. 2023,
    arXiv:2307.06431 (w-stabilised; sigma = 1, M = 4, w = 1 for points of the plane).

    Args:
        energy: The model; its free energy must be tractable.
        optimizer: Rule of the only level.
        noise_std: sigma, in the units of v; the paper's t is its square.
        n_negatives: M.
        w: The stabiliser, >= 0.
        seed: Seed of all noise.
        compile: Whether the iteration is compiled.

    Raises:
        ConfigError: For an energy without a free energy.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> ed = EnergyDiscrepancy(energy=GRBM(v_dim=2, h_dim=3), noise_std=0.5, optimizer=Adam(lr=1e-3))
        >>> ed.validation_loss(torch.zeros(5, 2), torch.Generator()).shape
        torch.Size([5])
    """

    energy_type = MarginalEnergy
    instead = ": use method=ed_latent"

    def __init__(
        self,
        *,
        energy: Energy,
        optimizer: Optimizer,
        noise_std: PositiveFloat = 1.0,
        n_negatives: PositiveInt = 4,
        w: NonNegativeFloat = 1.0,
        seed: Seed = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(energy=energy, optimizer=optimizer, seed=seed, compile=compile)
        self.noise_std = noise_std
        self.n_negatives = n_negatives
        self.w = w

    @property
    def title(self) -> str:
        """With sigma, M and w."""
        return f"ED: energy discrepancy, sigma = {self.noise_std:g}, M = {self.n_negatives}, w = {self.w:g}"

    def noise(self, v: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        """xi and xi_1 ... xi_M, shape (1 + M, B, *event)."""
        shape = (1 + self.n_negatives, *v.shape)
        options = {"dtype": v.dtype, "device": v.device}
        return {"perturbation": torch.randn(shape, generator=generator, **options)}

    def negatives(self, v: Tensor, noise: dict[str, Tensor]) -> Tensor:
        """u_i, shape (M, B, *event), of v (B, *event)."""
        xi = noise["perturbation"]
        return v + self.noise_std * (xi[:1] + xi[1:])

    def energy_differences(self, state: TrainState, v: Tensor, u: Tensor, noise: Any) -> Tensor:
        """F(v) - F(u_i), shape (M, B), of v (B, *event) and u (M, B, *event)."""
        energy = cast(MarginalEnergy, bind(self.energy, state.theta))
        at_v, at_u = energy.free_energy(torch.cat([v, u.flatten(0, 1)])).tensor_split([len(v)])
        return at_v - at_u.view(u.shape[:2])

    def loss(self, state: TrainState, v: Tensor, noise: Any) -> Tensor:
        """The loss per example, shape (B,)."""
        terms = self.energy_differences(state, v, self.negatives(v, noise), noise)
        if self.w > 0:
            terms = torch.cat([terms, torch.full_like(terms[:1], math.log(self.w))])
        return terms.logsumexp(0) - math.log(self.n_negatives)

    def float32_reason(self) -> str | None:
        """An exponent is a difference of free energies, which are large in many dimensions."""
        return "as its exponents are small differences of free energies"
