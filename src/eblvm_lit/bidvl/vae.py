"""The variational autoencoder: an encoder and a generator without an energy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from eblvm_lit.bidvl.base import Losses, TermMethod
from eblvm_lit.bidvl.fit import check_sizes
from eblvm_lit.bidvl.losses import Terms
from eblvm_lit.bidvl.players import Noise, Players
from eblvm_lit.bidvl.terms import prior_divergence, reconstruction_error
from eblvm_lit.methods.levels import Gradient, Level, TrainState
from eblvm_lit.optimizers.base import Optimizer
from eblvm_lit.posteriors.gaussian import GaussianPosterior

__all__ = ["VAE"]


class VAE(TermMethod):
    r"""Term A of doubly variational learning alone: a baseline of all its tables.

    .. math:: \min_\omega E_{q(v)} [E_{q(h|v)} \|G(h) - v\|^2 + KL(q(h|v) \| N(0, I))]

    That is minus the evidence's lower bound of the decoder N(G(h), I / 2), less a constant. Reference: Kingma and
    Welling 2014; Kan et al. 2022, tables 1 to 3.

    Args:
        posterior: The encoder q(h|v; omega_1).
        generator: G(h; omega_2), a module that maps h (B, H) to v (B, *event), and says its event_shape.
        optimizer: Rule of both.
        seed: Seed of all noise.
        compile: Whether the iteration is compiled.

    Raises:
        ConfigError: For parts of different sizes.

    Example:
        >>> from eblvm_lit.networks.batch_norm_encoder import BatchNormEncoder
        >>> from eblvm_lit.networks.conv_generator import ConvGenerator
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> from eblvm_lit.posteriors.encoder import EncoderPosterior
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
        seed: int = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(posterior=posterior, generator=generator, seed=seed, compile=compile)
        check_sizes(generator, posterior)
        self.optimizer = optimizer

    def levels(self) -> Sequence[Level]:
        """One."""
        return [Level("lower", "omega", 1, self.optimizer, self._eps, self._lower)]

    def _eps(self, v: Tensor, generator: torch.Generator) -> Noise:
        return {"eps": torch.randn(len(v), self.h_dim, generator=generator, dtype=v.dtype, device=v.device)}

    def terms(self, players: Players, v: Tensor, noise: Noise) -> Terms:
        """What both descend, at data v (B, *event)."""
        law = players.encoder.law(v)
        h = players.encoder.rsample_law(law, noise["eps"])
        return {"reconstruction": reconstruction_error(v, players.generator(h)), "prior": prior_divergence(law)}

    def losses(self, level: str, v: Tensor) -> Losses:  # noqa: ARG002 - there is one
        """Both terms."""
        return lambda players, noise: (self.terms(players, v, noise), {})

    def _lower(self, situation: TrainState, v: Tensor, noise: Noise, step: int) -> Gradient:  # noqa: ARG002
        return self.gradient(situation, "omega", self.losses("lower", v), noise)

    def validation_loss(self, v: Tensor, generator: torch.Generator) -> Tensor:
        """The bound, shape (B,), with one latent an example."""
        players = Players(None, self.posterior, None, self.generator)
        return sum(self.terms(players, v, self._eps(v, generator)).values())
