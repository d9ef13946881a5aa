"""The variational autoencoder, which is an encoder and a generator without an energy."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from eblvm_lit.core.ranges import Seed
from eblvm_lit.methods.bidvl.base import GeneratorMethod, Networks, Noise, TermFunction, Terms
from eblvm_lit.methods.bidvl.losses import prior_divergence, reconstruction_error
from eblvm_lit.methods.state import ParamGroup, TrainState
from eblvm_lit.optimizers.base import Optimizer
from eblvm_lit.posteriors.gaussian import GaussianPosterior

__all__ = ["VAE"]


class VAE(GeneratorMethod):
    r"""The variational autoencoder, a baseline that has only term A of BiDVL.

    .. math:: \min_\omega E_{q(v)} [E_{q(h|v)} \|G(h) - v\|^2 + KL(q(h|v) \| N(0, I))]

    Up to a constant, the loss is the negative evidence lower bound with the decoder N(G(h), I / 2). Reference: Kingma
    and Welling 2014; Kan et al. 2022, tables 1 to 3.

    Args:
        posterior: The encoder q(h|v; omega_1).
        generator: The generator G(h; omega_2), a module that maps h (B, H) to v (B, *event) and has the attribute
            ``event_shape``.
        optimizer: The optimizer of encoder and generator.
        seed: The seed of all random numbers.
        compile: Whether to compile the iteration; ``auto`` compiles it only in runs long enough to gain from it.

    Example:
        >>> from eblvm_lit.networks.bidvl_conv import BatchNormEncoder
        >>> from eblvm_lit.networks.bidvl_conv import ConvGenerator
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> from eblvm_lit.posteriors.gaussian import EncoderPosterior
        >>> vae = VAE(
        ...     posterior=EncoderPosterior(network=BatchNormEncoder(v_shape=[1, 8, 8], width=2), h_dim=3),
        ...     generator=ConvGenerator(v_shape=[1, 8, 8], h_dim=3, width=2), optimizer=Adam(lr=1e-3))
        >>> vae.validation_loss(torch.zeros(5, 1, 8, 8), torch.Generator()).shape
        torch.Size([5])
    """

    def __init__(
        self,
        *,
        posterior: GaussianPosterior,
        generator: nn.Module,
        optimizer: Optimizer,
        seed: Seed = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(posterior=posterior, generator=generator, seed=seed, compile=compile)
        self.optimizer = optimizer

    @property
    def title(self) -> str:
        """Return a readable name of the method."""
        return "VAE: variational autoencoder"

    def param_groups(self) -> dict[str, ParamGroup]:
        """Return the only group, which contains the encoder and the generator."""
        return {"model": ParamGroup("omega", self.optimizer)}

    def draw(self, v: Tensor, generator: torch.Generator) -> Noise:
        """Draw the random numbers for one sample of the latents of each example."""
        return {"eps": torch.randn(len(v), self.h_dim, generator=generator, dtype=v.dtype, device=v.device)}

    def draw_noise(self, v: Tensor, generator: torch.Generator) -> dict[str, Noise]:
        """Draw the random numbers of one iteration."""
        return {"model": self.draw(v, generator)}

    def iteration(self, state: TrainState, v: Tensor, noise: dict[str, Noise]) -> TrainState:
        """Make one step on the encoder and the generator."""
        return self.descend_terms(state, "model", v, noise["model"])

    @property
    def terms(self) -> dict[str, TermFunction]:
        """Return a dict that maps the name of the only optimizer step to a function that computes its loss terms."""
        return {"model": lambda networks, v, noise: (self.bound(networks, v, noise), {})}

    @staticmethod
    def bound(networks: Networks, v: Tensor, noise: Noise) -> Terms:
        """Compute the two terms of the negative evidence lower bound at data v (B, *event), each of shape (B,)."""
        q_params = networks.encoder.distribution_params(v)
        h = networks.encoder.rsample_given(q_params, noise["eps"])
        return {"reconstruction": reconstruction_error(v, networks.generator(h)), "prior": prior_divergence(q_params)}

    def validation_loss(self, v: Tensor, generator: torch.Generator) -> Tensor:
        """Compute the negative evidence lower bound, shape (B,), with one sample of the latents of each example."""
        networks = Networks(None, self.posterior, None, self.generator)
        bound = self.bound(networks, v, self.draw(v, generator))
        return bound["reconstruction"] + bound["prior"]
