"""Maximum likelihood training of a generator and an energy-based prior of its latents, with short Langevin chains."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from eblvm_lit.core.functional import Params, bind, grad_and_value
from eblvm_lit.core.ranges import Seed
from eblvm_lit.core.tensors import sum_event
from eblvm_lit.energies.base import Energy
from eblvm_lit.energies.latent_prior import LatentPriorEnergy
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.base import Method
from eblvm_lit.methods.parts import MethodParts
from eblvm_lit.methods.state import ParamGroup, TrainState
from eblvm_lit.optimizers.base import Optimizer
from eblvm_lit.samplers.langevin import Langevin
from eblvm_lit.samplers.latent_chains import PosteriorChain, posterior_energy, prior_energy, run_chain

__all__ = ["LEBM"]

# Samples of the prior and of the posterior are of order one. If their root mean square exceeds this value, the chain
# has diverged.
DIVERGED = 1e4


class LEBM(Method):
    r"""Maximum likelihood training of a generator and an energy-based prior of its latents, with short Langevin chains.

    .. math:: \nabla_\alpha: \; \mathrm{mean}\, \nabla_\alpha f(h^+) - \mathrm{mean}\, \nabla_\alpha f(h^-), \quad
        \nabla_\beta: \; \mathrm{mean}\, \nabla_\beta \|v - g(h^+)\|^2 / (2 \sigma^2)

    f (parameters alpha) is the energy of the prior and g (parameters beta) is the generator. At each minibatch both
    chains start from N(0, I) and make some Langevin steps: those of h- have the energy f(h) + |h|^2 / 2, and those of
    h+ have the energy E(v, h). No gradient goes through the chains. If h+ ~ p(h|v) and h- ~ p(h), the gradient is the
    gradient of -log p(v). f and g have separate optimizers, and both gradients are computed before either network is
    updated. A step is :math:`h \leftarrow h - \tfrac a2 \nabla_h E + \sqrt a\, \epsilon`. The paper's step sizes 0.4
    and 0.1 are understood as :math:`\sqrt a`. Reference: Pang et al. 2020, Algorithm 1, arXiv 2006.08205.

    Args:
        energy: The model, which contains f and g.
        prior_langevin: The Langevin dynamics of h-.
        posterior_langevin: The Langevin dynamics of h+.
        optimizer: The optimizer of g.
        prior_optimizer: The optimizer of f; that of g if not given.
        seed: The seed of all random numbers.
        compile: Whether to compile the iteration; ``auto`` compiles it only in runs long enough to gain from it.

    Raises:
        ConfigError: If the model is not a :class:`~eblvm_lit.energies.latent_prior.LatentPriorEnergy`.

    Example:
        >>> from eblvm_lit.networks.smooth_mlp import SmoothMLP
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> model = LatentPriorEnergy(
        ...     h_dim=3, generator=SmoothMLP(sizes=[3, 8, 2]), prior=SmoothMLP(sizes=[3, 8, 1]), std=0.3)
        >>> lebm = LEBM(
        ...     energy=model, optimizer=Adam(lr=1e-3), prior_langevin=Langevin(n_steps=6, step_size=0.16),
        ...     posterior_langevin=Langevin(n_steps=2, step_size=0.01))
        >>> list(lebm.param_groups())
        ['prior', 'generator']
    """

    def __init__(
        self,
        *,
        energy: Energy,
        prior_langevin: Langevin,
        posterior_langevin: Langevin,
        optimizer: Optimizer,
        prior_optimizer: Optimizer | None = None,
        seed: Seed = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(seed=seed, compile=compile)
        if not isinstance(energy, LatentPriorEnergy):
            raise ConfigError(
                f"LEBM trains a generator and a prior of its latents, which {type(energy).__name__} does not have: use "
                "model=latent_prior, or latent_prior_toy for vectors."
            )
        self.energy = energy
        self.optimizer = optimizer
        self.prior_optimizer = prior_optimizer or optimizer
        self.prior_langevin = prior_langevin
        self.posterior_langevin = posterior_langevin

    @property
    def title(self) -> str:
        """Return a readable name of the method, with the numbers of steps of the prior and posterior chains."""
        n = self.prior_langevin.n_steps
        m = self.posterior_langevin.n_steps
        return f"LEBM: a generator and the prior of its latents, Langevin chains of {n} and {m} steps"

    def networks(self) -> dict[str, nn.Module]:
        """Return the model, which is the only network."""
        return {"theta": self.energy}

    def param_groups(self) -> dict[str, ParamGroup]:
        """Return the parameter groups of the prior f and the generator g, in the order in which they are updated."""
        return {
            "prior": ParamGroup("theta", self.prior_optimizer, "prior."),
            "generator": ParamGroup("theta", self.optimizer, "generator."),
        }

    @property
    def parts(self) -> MethodParts:
        """Return the energy, and an encoder that samples the posterior with Langevin chains."""
        encoder = PosteriorChain(energy=self.energy, langevin=self.posterior_langevin, seed=self.seed)
        return MethodParts(energy=self.energy, encoder=encoder)

    def draw_noise(self, v: Tensor, generator: torch.Generator) -> dict[str, dict[str, Tensor]]:
        """Draw the initial states (B, H) and the noise (n_steps, B, H) of the prior chains and the posterior chains."""
        return {
            "prior": self.chain_noise(self.prior_langevin, v, generator),
            "posterior": self.chain_noise(self.posterior_langevin, v, generator),
        }

    def chain_noise(self, langevin: Langevin, v: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw the random numbers of Langevin chains, one chain for each example in v."""
        start = torch.randn(len(v), self.energy.h_dim, generator=generator, dtype=v.dtype, device=v.device)
        return {"start": start, "steps": langevin.noise(start, generator)}

    def iteration(self, state: TrainState, v: Tensor, noise: dict[str, Any]) -> TrainState:
        """Run one iteration of Pang et al. 2020, Algorithm 1."""
        energy = bind(self.energy, state.theta)
        negative = run_chain(self.prior_langevin, prior_energy(energy), noise["prior"])  # h- ~ p(h)
        positive = run_chain(self.posterior_langevin, posterior_energy(energy, v), noise["posterior"])  # h+ ~ p(h|v)

        def loss(theta: Params) -> tuple[Tensor, dict[str, Tensor]]:
            energy = bind(self.energy, theta)
            prior = energy.tilt(positive) - energy.tilt(negative)
            terms = {"prior": prior.mean(), "generator": energy.reconstruction_energy(v, positive).mean()}
            return terms["prior"] + terms["generator"], terms

        grads, (_, terms) = grad_and_value(loss, has_aux=True)(state.theta)
        sizes = {
            "prior": {"prior_rms": self.rms(state, negative)},
            "generator": {"posterior_rms": self.rms(state, positive)},
        }
        for name, group in self.groups.items():  # the first step trains the prior f, the second the generator g
            state = self.update(state, name, terms[name], group.of(grads), sizes[name])
        return state

    @staticmethod
    def rms(state: TrainState, h: Tensor) -> Tensor:
        """Return the root mean square of the minibatch's latents, or infinity if the latents have diverged."""
        rms = state.minibatch.mean(h.square().mean()).sqrt()
        return torch.where(rms < DIVERGED, rms, math.inf)

    def validation_loss(self, v: Tensor, generator: torch.Generator) -> Tensor:
        r"""Compute the squared error :math:`\|v - g(h^+)\|^2` for posterior samples :math:`h^+`, shape (B,)."""
        noise = self.chain_noise(self.posterior_langevin, v, generator)
        h = run_chain(self.posterior_langevin, posterior_energy(self.energy, v), noise)
        return sum_event((v - self.energy.decode(h)).square())

    def failure_hint(self, quantity: str) -> str | None:
        """Return advice if ``quantity`` shows that a chain diverges, or None otherwise."""
        steps = {
            "prior_rms": ("latent_langevin", self.prior_langevin),
            "posterior_rms": ("method.posterior_langevin", self.posterior_langevin),
        }
        if quantity not in steps:
            return None
        key, langevin = steps[quantity]
        return (
            f"the Langevin chain of latents diverges with step_size={langevin.step_size:g}: lower {key}.step_size, or "
            "the learning rates."
        )
