"""The adversarial network with spectral norms: a generator and an energy, its critic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from eblvm_lit.bidvl.base import Losses, TermMethod
from eblvm_lit.bidvl.fit import check_sizes
from eblvm_lit.bidvl.losses import Adversarial, Terms
from eblvm_lit.bidvl.players import Noise, Players
from eblvm_lit.energies.base import MarginalEnergy
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.levels import Gradient, Level, TrainState
from eblvm_lit.optimizers.base import Optimizer

__all__ = ["SNGAN"]


class SNGAN(TermMethod):
    r"""Terms B and D of doubly variational learning alone: a baseline without an encoder.

    .. math:: \min_{\psi'} E_{q(v)} [(1 + E'(v))_+] + E_{\hat h} [(1 - E'(G(\hat h)))_+], \quad
        \min_{\omega_2} E_{\hat h} E'(G(\hat h))

    The critic's steps of one iteration see one minibatch of data, and samples of their own. Reference: Miyato et al.
    2018; the control of Kan et al. 2022, code.

    Args:
        energy: The critic E'(v; psi').
        generator: G(h; omega_2), a module that maps h (B, H) to v (B, *event), and says its h_dim.
        loss: What both descend.
        optimizer: Rule of both.
        n_upper_steps: The critic's steps in an iteration.
        seed: Seed of all noise.
        compile: Whether the iteration is compiled.

    Raises:
        ConfigError: For parts that do not fit together, or no step of the critic.

    Example:
        >>> from eblvm_lit.energies.spectral import SpectralEnergy
        >>> from eblvm_lit.networks.conv_generator import ConvGenerator
        >>> from eblvm_lit.networks.spectral_conv import SpectralConv
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> gan = SNGAN(
        ...     energy=SpectralEnergy(network=SpectralConv(v_shape=[1, 8, 8], width=2), output="identity"),
        ...     generator=ConvGenerator(v_shape=[1, 8, 8], h_dim=3, width=2),
        ...     loss=Adversarial(), optimizer=Adam(lr=2e-4))
        >>> [(level.name, level.player, level.n_steps) for level in gan.levels()]
        [('upper', 'theta', 5), ('lower', 'omega', 1)]
    """

    def __init__(
        self,
        *,
        energy: MarginalEnergy,
        generator: nn.Module,
        loss: Adversarial,
        optimizer: Optimizer,
        n_upper_steps: int = 5,
        seed: int = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(energy=energy, generator=generator, seed=seed, compile=compile)
        if n_upper_steps < 1:
            raise ConfigError(f"n_upper_steps must be >= 1, or the critic never learns, not {n_upper_steps}.")
        check_sizes(generator, energy=energy)
        self.loss, self.optimizer, self.n_upper_steps = loss, optimizer, n_upper_steps

    def levels(self) -> Sequence[Level]:
        """The critic's, then the generator's."""
        return [
            Level("upper", "theta", self.n_upper_steps, self.optimizer, self._draws, self._upper),
            Level("lower", "omega", 1, self.optimizer, self._draw, self._lower),
        ]

    def _draws(self, v: Tensor, generator: torch.Generator) -> list[Noise]:
        return [self._draw(v, generator) for _ in range(self.n_upper_steps)]

    def losses(self, level: str, v: Tensor) -> Losses:
        """What a level descends; the upper one's energy gap E(v) - E(v_hat) is for the record."""

        def upper(players: Players, noise: Noise) -> tuple[Terms, Terms]:
            energies = self.loss.energies(players, v, noise)
            return self.loss.descended(*energies), {"energy_gap": energies[0] - energies[1]}

        return {"upper": upper, "lower": lambda players, noise: (self.loss.lower(players, v, noise), {})}[level]

    def _upper(self, situation: TrainState, v: Tensor, noise: Sequence[Noise], step: int) -> Gradient:
        return self.gradient(situation, "theta", self.losses("upper", v), noise[step])

    def _lower(self, situation: TrainState, v: Tensor, noise: Noise, step: int) -> Gradient:  # noqa: ARG002
        return self.gradient(situation, "omega", self.losses("lower", v), noise)

    def validation_loss(self, v: Tensor, generator: torch.Generator) -> Tensor:
        """What the critic descends, shape (B,): no measure of quality, which test_checkpoint=best needs another for."""
        players = Players(self.energy, None, None, self.generator)
        return self.loss.upper(players, v, self._draw(v, generator))["critic_loss"]
