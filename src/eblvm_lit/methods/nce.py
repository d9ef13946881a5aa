"""Noise-contrastive estimation."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import PositiveInt
from torch import Tensor
from torch.nn.functional import logsigmoid

from eblvm_lit.core.functional import bind
from eblvm_lit.core.ranges import Seed
from eblvm_lit.energies.base import Energy, MarginalEnergy
from eblvm_lit.methods.self_normalised import SelfNormalisedMethod
from eblvm_lit.methods.state import TrainState
from eblvm_lit.noise_distributions.base import NoiseDistribution
from eblvm_lit.optimizers.base import Optimizer

__all__ = ["NCE"]


class NCE(SelfNormalisedMethod):
    r"""Noise-contrastive estimation: theta and c by telling data from noise.

    .. math:: -\log \sigma(-F(v) - c - \log\nu - \log p_n(v)) - \sum_{i \le \nu} \log \sigma(F(y_i) + c + \log\nu
        + \log p_n(y_i)), \quad y_i \sim p_n

    The minimum is where exp(-F(v) - c) is the data's density; c is then log Z. Reference: Gutmann and Hyvarinen 2012.

    Args:
        energy: The model; its free energy must be tractable.
        noise_distribution: p_n.
        optimizer: Rule of the only level, which moves theta and c.
        nu: Number of y for each v.
        seed: Seed of all noise.
        compile: Whether the iteration is compiled.

    Raises:
        ConfigError: For an energy without a free energy.

    Attributes:
        model: The energy with c.

    Example:
        >>> import torch
        >>> from eblvm_lit.noise_distributions.normal import StandardNormal
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> nce = NCE(energy=GRBM(v_dim=2, h_dim=3), noise_distribution=StandardNormal(), optimizer=Adam(lr=1e-3))
        >>> nce.validation_loss(torch.zeros(5, 2), torch.Generator()).shape
        torch.Size([5])
    """

    energy_type = MarginalEnergy
    instead = ": use method=vnce"

    def __init__(
        self,
        *,
        energy: Energy,
        noise_distribution: NoiseDistribution,
        optimizer: Optimizer,
        nu: PositiveInt = 1,
        seed: Seed = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(
            energy=energy,
            noise_distribution=noise_distribution,
            optimizer=optimizer,
            n_proposals=nu,
            seed=seed,
            compile=compile,
        )

    @property
    def title(self) -> str:
        """With nu."""
        return f"NCE: noise-contrastive estimation, nu = {self.n_proposals}"

    def terms(self, state: TrainState, v: Tensor, noise: Any) -> tuple[Tensor, Tensor]:
        """The loss of taking v for noise, and that of taking the nu y for data, each of shape (B,)."""
        y = self.noise_distribution.sample(noise["noise_distribution"].flatten(0, 1))
        at_v, at_y = self.log_densities(state, v, y, noise)
        offset = bind(self.model, state.theta).c + math.log(self.n_proposals)
        data = logsigmoid(at_v - offset - self.noise_distribution.log_prob(v))
        other = logsigmoid(offset + self.noise_distribution.log_prob(y) - at_y)
        return -data, -other.view(self.n_proposals, -1).sum(0)

    def float32_reason(self) -> str | None:
        """A logit is a difference of log-densities, which are large in many dimensions."""
        return "as its logits are small differences of log-densities"

    def loss(self, state: TrainState, v: Tensor, noise: Any) -> Tensor:
        """The loss per example, shape (B,)."""
        at_data, at_noise = self.terms(state, v, noise)
        return at_data + at_noise
