"""The spectrally normalised GAN, which consists of a generator and of an energy that serves as the critic."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from eblvm_lit.core.ranges import Seed
from eblvm_lit.energies.base import MarginalEnergy
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.bidvl.base import GeneratorMethod, Networks, Noise, TermFunction
from eblvm_lit.methods.bidvl.losses import Adversarial
from eblvm_lit.methods.state import ParamGroup, TrainState
from eblvm_lit.optimizers.base import Optimizer

__all__ = ["SNGAN"]


class SNGAN(GeneratorMethod):
    r"""The spectrally normalised GAN, a baseline that keeps only BiDVL's adversarial terms and has no encoder.

    .. math:: \min_{\psi'} E_{q(v)} [(1 + E'(v))_+] + E_{\hat h} [(1 - E'(G(\hat h)))_+], \quad
        \min_{\omega_2} E_{\hat h} E'(G(\hat h))

    Each step of the critic uses new samples. Reference: Miyato et al. 2018; a control experiment in the code of Kan et
    al. 2022.

    Args:
        energy: The critic E'(v; psi').
        generator: The generator G(h; omega_2), a module that maps h (B, H) to v (B, *event) and has the attribute
            ``h_dim``.
        loss: The losses of critic and generator.
        optimizer: The optimizer of critic and generator.
        n_upper_steps: The number of the critic's steps in an iteration.
        fresh_minibatches: Whether each step of the critic uses another part of the minibatch, as in the authors' code
            (``data.batch_size=500`` for five steps of 100 images); otherwise all steps use the whole minibatch.
        seed: The seed of all random numbers.
        compile: Whether to compile the iteration; ``auto`` compiles it only in runs long enough to gain from it.

    Example:
        >>> from eblvm_lit.energies.spectral import SpectralEnergy
        >>> from eblvm_lit.networks.bidvl_conv import ConvGenerator
        >>> from eblvm_lit.networks.bidvl_conv import SpectralConv
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> gan = SNGAN(
        ...     energy=SpectralEnergy(network=SpectralConv(v_shape=[1, 8, 8], width=2), output="identity"),
        ...     generator=ConvGenerator(v_shape=[1, 8, 8], h_dim=3, width=2),
        ...     loss=Adversarial(), optimizer=Adam(lr=2e-4))
        >>> list(gan.param_groups())
        ['upper', 'lower']
    """

    def __init__(
        self,
        *,
        energy: MarginalEnergy,
        generator: nn.Module,
        loss: Adversarial,
        optimizer: Optimizer,
        n_upper_steps: PositiveInt = 5,
        fresh_minibatches: bool = False,
        seed: Seed = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(energy=energy, generator=generator, seed=seed, compile=compile)
        self.loss = loss
        self.optimizer = optimizer
        self.n_upper_steps = n_upper_steps
        self.fresh_minibatches = fresh_minibatches

    @property
    def title(self) -> str:
        """Return a readable name of the method, with the number of critic steps."""
        return f"SNGAN: spectrally normalised GAN, {self.n_upper_steps} upper steps"

    def param_groups(self) -> dict[str, ParamGroup]:
        """Return the parameter groups of the critic (``upper``) and of the generator (``lower``)."""
        return {"upper": ParamGroup("theta", self.optimizer), "lower": ParamGroup("omega", self.optimizer)}

    def draw_noise(self, v: Tensor, generator: torch.Generator) -> dict[str, Any]:
        """Draw the random numbers of the critic's steps and of the generator's step."""
        upper = [self.draw(v, generator) for _ in range(self.n_upper_steps)]
        return {"upper": upper, "lower": self.draw(v, generator)}

    def iteration(self, state: TrainState, v: Tensor, noise: dict[str, Any]) -> TrainState:
        """Run one iteration of Miyato et al. 2018: critic steps, then one generator step, each with new samples."""
        n_parts = self.n_upper_steps if self.fresh_minibatches else 1
        for k, drawn in enumerate(noise["upper"]):
            part, drawn = self.part(k % n_parts, n_parts, v, drawn)
            state = self.descend_terms(state, "upper", part, drawn, self.generate(state, drawn))
        part, drawn = self.part(0, n_parts, v, noise["lower"])
        return self.descend_terms(state, "lower", part, drawn, self.generate(state, drawn))

    @staticmethod
    def part(k: int, n_parts: int, v: Tensor, noise: Noise) -> tuple[Tensor, Noise]:
        """Return every ``n_parts``-th example of the data v (B, *event) and its noise, starting with example k."""
        if n_parts == 1:
            return v, noise
        return v[k::n_parts], {name: x[k::n_parts] for name, x in noise.items()}

    def check_shared_batch(self, n: int, size: int) -> None:
        """Raise a ConfigError if several processes would not divide a minibatch into the parts of one process.

        Each process has a share of both halves of the minibatch (core/shards.py), and divides it among the steps.
        """
        multiple = 2 * size * self.n_upper_steps
        if self.fresh_minibatches and self.n_upper_steps > 1 and n >= 2 * size and n % multiple:
            raise ConfigError(
                f"{size} devices cannot divide a batch of {n} examples evenly among {self.n_upper_steps} steps of the "
                f"critic: choose data.batch_size, and a training split, that are multiples of {multiple}, or "
                "method.fresh_minibatches=false."
            )

    @property
    def terms(self) -> dict[str, TermFunction]:
        """Return a dict that maps the name of each optimizer step to a function that computes its loss terms."""
        return {
            "upper": self.loss.upper,
            "lower": lambda networks, v, noise: (self.loss.lower(networks, v, noise), {}),
        }

    def validation_loss(self, v: Tensor, generator: torch.Generator) -> Tensor:
        """Compute the critic's loss for each example, shape (B,).

        This loss does not measure the quality of samples, so ``test_checkpoint=best`` needs a metric.
        """
        networks = Networks(self.energy, None, None, self.generator)
        return self.loss.upper(networks, v, self.draw(v, generator))[0]["critic_loss"]
