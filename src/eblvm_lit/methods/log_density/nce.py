"""Noise-contrastive estimation and its variational form."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor
from torch.nn.functional import logsigmoid

from eblvm_lit.core.functional import bind
from eblvm_lit.core.ranges import Seed
from eblvm_lit.divergences.base import Divergence
from eblvm_lit.energies.base import Energy
from eblvm_lit.methods.log_density.log_densities import bound_or_exact
from eblvm_lit.methods.log_density.self_normalised import SelfNormalisedMethod
from eblvm_lit.methods.state import TrainState
from eblvm_lit.noise_distributions.base import NoiseDistribution
from eblvm_lit.optimizers.base import Optimizer
from eblvm_lit.posteriors.base import Posterior

__all__ = ["NCE", "VNCE"]


class NCE(SelfNormalisedMethod):
    r"""Noise-contrastive estimation, which learns theta and log Z by classifying data against noise.

    .. math:: -\log \sigma(\log \tilde p(v) - \log Z - \log\nu - \log p_n(v))
        - \sum_{i \le \nu} \log \sigma(\log Z + \log\nu + \log p_n(y_i) - \log \tilde p(y_i)), \quad y_i \sim p_n

    With the exact log-density :math:`\log \tilde p = -F` the loss is smallest if exp(-F(v)) / Z is the data's density.
    Reference: Gutmann and Hyvarinen 2012, where nu is the number of noise samples divided by the number of data.

    Args:
        energy: The model.
        noise_distribution: The noise distribution p_n.
        optimizer: The optimizer of theta and log Z.
        log_density: The log-density up to log Z; the exact one, -F(v), if not given.
        nu: The number of noise samples y for each v.
        seed: The seed of all random numbers.
        compile: Whether to compile the iteration; ``auto`` compiles it only in runs long enough to gain from it.

    Raises:
        ConfigError: If the energy has no such log-density.

    Attributes:
        model: The energy together with the learned log Z.

    Example:
        >>> import torch
        >>> from eblvm_lit.noise_distributions.normal import StandardNormal
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> nce = NCE(energy=GRBM(v_dim=2, h_dim=3), noise_distribution=StandardNormal(), optimizer=Adam(lr=1e-3))
        >>> nce.validation_loss(torch.zeros(5, 2), torch.Generator()).shape
        torch.Size([5])
    """

    @property
    def title(self) -> str:
        """Return a readable name of the method, with the noise ratio nu and the settings of the log-density."""
        return f"{type(self).__name__}: noise-contrastive estimation, nu = {self.nu}{self.log_density.words}"

    def terms(self, state: TrainState, v: Tensor, noise: Any) -> tuple[Tensor, Tensor]:
        """Compute each example's classification loss and the total loss of its nu noise samples, each of shape (B,)."""
        y = self.noise_distribution.sample(noise["noise_distribution"].flatten(0, 1))
        at_v, at_y = self.log_densities(state, v, y, noise)
        offset = bind(self.model, state.theta).log_z + math.log(self.nu)
        data = logsigmoid(at_v - offset - self.noise_distribution.log_prob(v))
        other = logsigmoid(offset + self.noise_distribution.log_prob(y) - at_y)
        return -data, -other.view(self.nu, -1).sum(0)

    def float32_reason(self) -> str | None:
        """Return the reason for using float32: the logits are small differences of large log-densities."""
        return "as its logits are small differences of log-densities"

    def loss(self, state: TrainState, v: Tensor, noise: Any) -> Tensor:
        """Compute the loss of each example, shape (B,)."""
        at_data, at_noise = self.terms(state, v, noise)
        return at_data + at_noise


class VNCE(NCE):
    r"""Variational noise-contrastive estimation: :class:`NCE` with a bound on the log-density that uses a posterior.

    .. math:: \log \tilde p(v) \to -E(v, h) - \log q(h|v), \quad
        \log \tilde p(y) \to \log \frac1L \sum_{l=1}^L \exp(-E(y, h_l) - \log q(h_l|y)), \quad h, h_l \sim q

    An iteration makes K steps on phi that decrease the divergence of q(h|v) from p(h|v) at the data, and then one step
    on theta and log Z with the new phi. Binary h are relaxed samples of q, as in the authors' code. References: Rhodes
    and Gutmann 2019; Bao et al. 2021, code.

    Args:
        energy: The model, with the energy E(v, h; theta).
        noise_distribution: The noise distribution p_n.
        optimizer: The optimizer of theta and log Z in the upper level.
        posterior: The posterior q(h|v; phi); None for NCE with the exact log-density.
        divergence: The divergence of q from p that the lower level minimises; None if there is no q.
        n_lower_steps: The number K of steps on phi in each iteration.
        n_particles: The number L of latents drawn for each noise sample y; one latent is drawn for each v.
        nu: The number of noise samples y for each v.
        lower_optimizer: The optimizer of phi in the lower level; that of the upper level if not given.
        seed: The seed of all random numbers.
        compile: Whether to compile the iteration; ``auto`` compiles it only in runs long enough to gain from it.

    Raises:
        ConfigError: If the components are incompatible.

    Example:
        >>> from eblvm_lit.noise_distributions.normal import StandardNormal
        >>> from eblvm_lit.divergences.kl import KL
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> from eblvm_lit.posteriors.bernoulli import BernoulliPosterior
        >>> vnce = VNCE(energy=GRBM(v_dim=2, h_dim=3), posterior=BernoulliPosterior(v_dim=2, h_dim=3),
        ...             divergence=KL(), noise_distribution=StandardNormal(), optimizer=Adam(lr=1e-3))
        >>> list(vnce.param_groups())
        ['lower', 'upper']
    """

    def __init__(
        self,
        *,
        energy: Energy,
        noise_distribution: NoiseDistribution,
        optimizer: Optimizer,
        posterior: Posterior | None = None,
        divergence: Divergence | None = None,
        n_lower_steps: NonNegativeInt = 5,
        n_particles: PositiveInt = 5,
        nu: PositiveInt = 1,
        lower_optimizer: Optimizer | None = None,
        seed: Seed = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(
            energy=energy,
            noise_distribution=noise_distribution,
            optimizer=optimizer,
            log_density=bound_or_exact(
                posterior,
                divergence,
                n_lower_steps=n_lower_steps,
                n_particles=n_particles,
                relaxed=True,
                lower_optimizer=lower_optimizer,
            ),
            nu=nu,
            seed=seed,
            compile=compile,
        )
