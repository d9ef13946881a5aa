"""The base class of NCE and SNL, which learn the energy and log Z with samples from a fixed distribution."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from eblvm_lit.core.functional import Params, bind
from eblvm_lit.core.ranges import Seed
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.energies.base import Energy
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.base import ROWS
from eblvm_lit.methods.log_density.log_densities import ExactLogDensity, LogDensity
from eblvm_lit.methods.loss_method import LossMethod
from eblvm_lit.methods.parts import MethodParts
from eblvm_lit.methods.state import TrainState
from eblvm_lit.noise_distributions.base import NoiseDistribution
from eblvm_lit.optimizers.base import Optimizer

__all__ = ["SelfNormalised", "SelfNormalisedMethod"]

N_START = 10  # the number of minibatches of samples of p_n from which the initial log Z is estimated


class SelfNormalised(nn.Module):
    """An energy together with a learned scalar, the estimate of its log Z.

    The parameters theta consist of the energy's parameters and of this scalar.

    Args:
        energy: The energy whose log Z is learned.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> [name for name, _ in SelfNormalised(GRBM(v_dim=2, h_dim=3)).named_parameters()]
        ['log_z', 'energy.W', 'energy.b', 'energy.c', 'energy.log_std']
    """

    def __init__(self, energy: Energy) -> None:
        super().__init__()
        self.energy = energy
        self.log_z = nn.Parameter(torch.zeros(()))
        self.register_load_state_dict_pre_hook(_read_former_name)


def _read_former_name(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:  # noqa: ARG001
    """Rename ``c`` to ``log_z`` in a state dict, so that state dicts of earlier versions can be loaded."""
    if f"{prefix}c" in state:
        state[f"{prefix}log_z"] = state.pop(f"{prefix}c")


class SelfNormalisedMethod(LossMethod):
    r"""The base class of methods that learn theta and log Z from data and from samples of a noise distribution p_n.

    A subclass implements the loss, a function of log Z and of the log-densities up to log Z.

    Args:
        energy: The model.
        noise_distribution: The fixed distribution p_n.
        optimizer: The optimizer of theta and log Z.
        log_density: The log-density up to log Z; the exact one if not given.
        nu: The number of noise samples y for each v.
        seed: The seed of all random numbers.
        compile: Whether to compile the iteration; ``auto`` compiles it only in runs long enough to gain from it.

    Raises:
        ConfigError: If the energy has no such log-density, or if v is binary and p_n real or the reverse.

    Attributes:
        model: The energy together with the learned log Z.
    """

    def __init__(
        self,
        *,
        energy: Energy,
        noise_distribution: NoiseDistribution,
        optimizer: Optimizer,
        log_density: LogDensity | None = None,
        nu: PositiveInt = 1,
        seed: Seed = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(optimizer=optimizer, seed=seed, compile=compile)
        self.log_density: LogDensity = log_density or ExactLogDensity()
        self.log_density.check(energy)
        if energy.binary_visible != noise_distribution.of_bits:
            raise ConfigError(
                f"{type(noise_distribution).__name__} does not draw the v of {type(energy).__name__}: use "
                + ("noise_distribution=bernoulli." if energy.binary_visible else "noise_distribution=fitted_normal.")
            )
        self.model = SelfNormalised(energy)
        self.noise_distribution = noise_distribution
        self.nu = nu
        noise_distribution.prepare(energy.event_shape)
        self.fit_posterior(**self.log_density.lower_level)

    @property
    def energy(self) -> Energy:
        """Return the energy, without the learned log Z."""
        return self.model.energy

    @property
    def parts(self) -> MethodParts:
        """Return the energy, its learned log Z and, if there is a posterior, the posterior and its divergence."""
        return super().parts._replace(log_z=self.model.log_z)

    def networks(self) -> dict[str, nn.Module]:
        """Return the model with log Z as ``theta``, and the posterior as ``phi`` if there is one."""
        return {**super().networks(), "theta": self.model}

    def energy_at(self, theta: Params) -> Energy:
        """Return the energy, without the learned log Z, with the given parameters theta."""
        return bind(self.model, theta).energy

    def on_fit_start(self) -> None:
        """Fit the noise distribution p_n to the training split."""
        super().on_fit_start()
        data = self._data
        self.noise_distribution.fit(data.as_float(rows.to(self.device)) for rows in data.splits.train.split(ROWS))

    def noise(self, v: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw the random numbers of one evaluation of the loss."""
        noise = self.noise_distribution.noise((self.nu,), v, generator)
        return {"noise_distribution": noise, **self.log_density.noise(v, noise.flatten(0, 1), generator)}

    def log_densities(self, state: TrainState, v: Tensor, y: Tensor, noise: Any) -> tuple[Tensor, Tensor]:
        """Compute the unnormalised log-densities at data v (B, *event) and at noise samples y (nu B, *event).

        The results have the shapes (B,) and (nu B,).
        """
        return self.log_density.pair(self.energy_at(state.theta), self.posterior_at(state), v, y, noise)

    @torch.no_grad()
    def proposal_log_z(self, v: Tensor, n_batches: int) -> Tensor:
        """Estimate log Z as the logarithm of the mean importance weight of samples from the noise distribution.

        Args:
            v: Examples, shape (B, *event); nu samples are drawn for each of them.
            n_batches: The number of times that such a batch of samples is drawn.
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
        """Initialise log Z with an estimate from :meth:`proposal_log_z`, unless the run resumes from a checkpoint."""
        data = self._data
        if self.trainer.ckpt_path is None:
            v = data.as_float(data.splits.train[: data.batch_size]).to(device=self.device, dtype=self.dtype)
            with torch.no_grad():
                self.model.log_z.copy_(self.proposal_log_z(v, N_START))
