"""The adversarial network with spectral norms: a generator and an energy, its critic."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from eblvm_lit.bidvl.base import GeneratorMethod, TermFunction
from eblvm_lit.bidvl.losses import Adversarial, Terms
from eblvm_lit.bidvl.networks import Networks, Noise
from eblvm_lit.bidvl.sizes import check_sizes
from eblvm_lit.energies.base import MarginalEnergy
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.state import ParamGroup, TrainState
from eblvm_lit.optimizers.base import Optimizer

__all__ = ["SNGAN"]


class SNGAN(GeneratorMethod):
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
        >>> list(gan.param_groups()), gan.inner_steps()
        (['upper', 'lower'], 6)
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

    def param_groups(self) -> dict[str, ParamGroup]:
        """The critic, and the generator."""
        return {"upper": ParamGroup("theta", self.optimizer), "lower": ParamGroup("omega", self.optimizer)}

    def draw_noise(self, v: Tensor, generator: torch.Generator) -> dict[str, Any]:
        """The random numbers of the critic's steps and of the generator's."""
        upper = [self.draw(v, generator) for _ in range(self.n_upper_steps)]
        return {"upper": upper, "lower": self.draw(v, generator)}

    def iteration(self, state: TrainState, v: Tensor, noise: dict[str, Any]) -> TrainState:
        """Miyato et al. 2018: some steps of the critic, then one of the generator, each with fresh samples."""
        terms = self.terms(v)
        for drawn in noise["upper"]:
            state = self.descend_terms(state, "upper", terms["upper"], drawn, self.generate(state, drawn))
        return self.descend_terms(state, "lower", terms["lower"], noise["lower"], self.generate(state, noise["lower"]))

    def terms(self, v: Tensor) -> dict[str, TermFunction]:
        """What each descends; the energy difference E(v) - E(v_hat) is recorded beside the critic's."""

        def upper(networks: Networks, noise: Noise) -> tuple[Terms, Terms]:
            real, fake = self.loss.energies(networks, v, noise)
            return self.loss.descended(real, fake), {"energy_gap": real - fake}

        return {"upper": upper, "lower": lambda networks, noise: (self.loss.lower(networks, v, noise), {})}

    def inner_steps(self) -> int:
        """The critic's steps, and the generator's."""
        return self.n_upper_steps + 1

    def validation_loss(self, v: Tensor, generator: torch.Generator) -> Tensor:
        """What the critic descends, shape (B,): it measures no quality, so ``test_checkpoint=best`` needs a metric."""
        networks = Networks(self.energy, None, None, self.generator)
        return self.loss.upper(networks, v, self.draw(v, generator))["critic_loss"]
