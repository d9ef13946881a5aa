"""A method: training by energy discrepancy."""

import math

import torch
from torch import Tensor

from eblvm_lit.core.functional import bind
from eblvm_lit.energies.base import MarginalEnergy
from eblvm_lit.methods.loss_method import LossMethod
from eblvm_lit.methods.state import TrainState
from eblvm_lit.optimizers.base import Optimizer


class EnergyDiscrepancy(LossMethod):
    """Minimises log(1/M + 1/M sum_i exp(F(v) - F(v + sigma xi + sigma xi_i))), see Schröder et al. 2023.

    Args: energy, optimizer, seed as in LossMethod; noise_std: sigma, in the units of v; n_negatives: M.
    """

    energy_type = MarginalEnergy  # other energies are refused

    def __init__(
        self, *, energy: MarginalEnergy, optimizer: Optimizer, noise_std: float, n_negatives: int = 16, seed: int = 0
    ) -> None:
        super().__init__(energy=energy, optimizer=optimizer, seed=seed)
        self.noise_std = noise_std
        self.n_negatives = n_negatives

    def noise(self, v: Tensor, generator: torch.Generator) -> Tensor:
        """Draw xi and xi_1 ... xi_M, shape (1 + M, B, *event)."""
        return torch.randn((1 + self.n_negatives, *v.shape), generator=generator, dtype=v.dtype, device=v.device)

    def loss(self, state: TrainState, v: Tensor, noise: Tensor) -> Tensor:
        """Compute the loss per example, shape (B,)."""
        free_energy = bind(self.energy, state.theta).free_energy
        negatives = v + self.noise_std * (noise[:1] + noise[1:])
        gap = free_energy(v) - free_energy(negatives.flatten(0, 1)).view(self.n_negatives, len(v))
        return torch.cat([torch.zeros_like(gap[:1]), gap]).logsumexp(0) - math.log(self.n_negatives)
