"""The base of NCE and SNL, which learn log Z with the energy from samples of a fixed distribution."""

from __future__ import annotations

import math
from typing import Any, Literal, cast

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from eblvm_lit.core.functional import Params, bind
from eblvm_lit.core.ranges import Seed
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.energies.base import Energy, MarginalEnergy
from eblvm_lit.methods.loss_method import LossMethod
from eblvm_lit.methods.parts import MethodParts
from eblvm_lit.methods.state import TrainState
from eblvm_lit.noise_distributions.base import NoiseDistribution
from eblvm_lit.optimizers.base import Optimizer

__all__ = ["SelfNormalised", "SelfNormalisedMethod"]

ROWS = 10_000  # of the training split at a time
N_START = 10  # minibatches of samples that say where c starts


class SelfNormalised(nn.Module):
    """An energy and a learned estimate c of its log Z; together they are theta.

    Args:
        energy: The energy.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> [name for name, _ in SelfNormalised(GRBM(v_dim=2, h_dim=3)).named_parameters()]
        ['c', 'energy.W', 'energy.b', 'energy.c', 'energy.log_std']
    """

    def __init__(self, energy: Energy) -> None:
        super().__init__()
        self.energy: Any = energy  # of the method's energy_type
        self.c = nn.Parameter(torch.zeros(()))


class SelfNormalisedMethod(LossMethod):
    r"""One loss of an energy and of c, at the data and at samples y of a fixed p_n.

    A subclass says which energies it takes, and gives the loss.

    Args:
        energy: The model.
        noise_distribution: p_n.
        optimizer: Rule of the only level, which moves theta and c.
        n_proposals: Number of y for each v.
        seed: Seed of all noise.
        compile: Whether the iteration is compiled.

    Raises:
        ConfigError: For an energy that is not of :attr:`energy_type`.

    Attributes:
        model: The energy with c.
    """

    def __init__(
        self,
        *,
        energy: Energy,
        noise_distribution: NoiseDistribution,
        optimizer: Optimizer,
        n_proposals: PositiveInt = 1,
        seed: Seed = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(optimizer=optimizer, seed=seed, compile=compile)
        self.check_energy(energy)
        self.model = SelfNormalised(energy)
        self.noise_distribution = noise_distribution
        self.n_proposals = n_proposals
        noise_distribution.prepare(energy.event_shape)

    @property
    def energy(self) -> Energy:
        """The model without c."""
        return self.model.energy

    @property
    def parts(self) -> MethodParts:
        """The energy, and the c that belongs to it."""
        return MethodParts(energy=self.energy, log_z=self.model.c)

    def networks(self) -> dict[str, nn.Module]:
        """The model with c."""
        return {"theta": self.model}

    def energy_at(self, theta: Params) -> Energy:
        """The model with other parameters, without c."""
        return bind(self.model, theta).energy

    def on_fit_start(self) -> None:
        """Fit p_n to the training split."""
        super().on_fit_start()
        data = self._data
        self.noise_distribution.fit(data.as_float(rows.to(self.device)) for rows in data.splits.train.split(ROWS))

    def noise(self, v: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        """The random numbers of one evaluation of the loss."""
        return {"noise_distribution": self.noise_distribution.noise((self.n_proposals,), v, generator)}

    def log_densities(self, state: TrainState, v: Tensor, y: Tensor, noise: Any) -> tuple[Tensor, Tensor]:
        """Log of the density up to Z, at v (B, *event) and y (n B, *event), shapes (B,) and (n B,)."""
        energy = cast(MarginalEnergy, self.energy_at(state.theta))
        return -energy.free_energy(v), -energy.free_energy(y)

    @torch.no_grad()
    def proposal_log_z(self, v: Tensor, n_batches: int) -> Tensor:
        """An estimate of log Z by importance sampling with p_n, a number: the log of the mean weight.

        Args:
            v: Examples, shape (B, *event), for each of which samples are drawn.
            n_batches: How often.
        """
        generator = keyed_generator(self.seed, "log_z", device=v.device)
        found = []
        for _ in range(n_batches):
            noise = self.noise(v, generator)
            y = self.noise_distribution.sample(noise["noise_distribution"].flatten(0, 1))
            _, at_y = self.log_densities(self.live_state(), v, y, noise)
            found.append(at_y - self.noise_distribution.log_prob(y))
        weights = torch.cat(found)
        return weights.logsumexp(0) - math.log(len(weights))

    def start_at_log_z(self) -> None:
        """Set c to :meth:`proposal_log_z`, unless a checkpoint has brought it."""
        data = self._data
        if self.trainer.ckpt_path is None:
            v = data.as_float(data.splits.train[: data.batch_size]).to(device=self.device, dtype=self.dtype)
            with torch.no_grad():
                self.model.c.copy_(self.proposal_log_z(v, N_START))
