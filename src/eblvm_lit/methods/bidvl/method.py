"""The method BiDVL: bi-level doubly variational learning of energy-based latent variable models."""

from __future__ import annotations

from typing import Any, Literal, cast

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from eblvm_lit.core.functional import Params, grad
from eblvm_lit.core.minibatch import WHOLE
from eblvm_lit.core.ranges import Seed
from eblvm_lit.energies.base import Energy
from eblvm_lit.hypergradients.base import BilevelProblem
from eblvm_lit.hypergradients.unroll import Unroll
from eblvm_lit.methods.bidvl.base import GeneratorMethod, Networks, Noise, Samples, TermFunction, Terms
from eblvm_lit.methods.bidvl.losses import BiDVLLoss, check_fit, reconstruction_error
from eblvm_lit.methods.state import ParamGroup, TrainState
from eblvm_lit.optimizers.base import Optimizer
from eblvm_lit.optimizers.late_start import LateStart
from eblvm_lit.posteriors.gaussian import GaussianPosterior

__all__ = ["BiDVL"]


class BiDVL(GeneratorMethod):
    r"""Bi-level doubly variational learning of an energy, an encoder and a generator, without Markov chains.

    .. math:: \min_{\psi'} KL(q(v) q_{\omega_1} \| p_{\psi'}) - KL(p_{\omega_2} \| p_{\psi'}), \quad
        \min_{\omega} KL(q(v) q_{\omega_1} \| p_{\omega_2}) + KL(p_{\omega_2} \| p_{\psi'}), \quad
        p_{\psi'}(v, h) \propto e^{-E(v; \psi')} q(h | v; \omega_1)

    The upper level makes one step on psi' (``theta`` in the code), and the lower level makes K steps on omega.
    Reference: Kan et al. 2022, Algorithm 1, which :meth:`iteration` implements, and code.

    Args:
        energy: The energy E'(v; psi'), or E(v, h; psi) for a loss with a joint energy.
        posterior: The encoder q(h|v; omega_1).
        generator: The generator G(h; omega_2), a module that maps h (B, H) to v (B, *event).
        loss: The losses of both levels.
        optimizer: The optimizer of psi' in the upper level.
        lower_optimizer: The optimizer of omega in the lower level, and of the encoder's step in the upper level; the
            same as ``optimizer`` if not given.
        encoder_optimizer: The optimizer of the encoder's step in the upper level, if the loss has such a step.
            ``shared``, as in the authors' code, is the lower level's optimizer, which receives a zero gradient for the
            generator. Its moments and weight decay still change the generator, except in the very first step. ``own``
            is an optimizer with separate moments.
        n_lower_steps: The number K of steps on omega in each iteration.
        n_unroll: The number N of unrolled lower steps that the upper gradient differentiates through. Each unrolled
            step costs more than a real step and stays in memory. The published results use no unrolled steps.
        upper_first: Whether the upper level comes before the lower level, as in the authors' code, or after it, as in
            Algorithm 1.
        share_latents: Whether the upper level and the first lower step use the same h_hat, and so the same v_hat.
        seed: The seed of all random numbers.
        compile: Whether to compile the iteration; ``auto`` compiles it only in runs long enough to gain from it.

    Raises:
        ConfigError: If the loss cannot use this type of energy.

    Example:
        >>> from eblvm_lit.methods.bidvl.ratios import ConstantRatio
        >>> from eblvm_lit.methods.bidvl.losses import FullLatentTerm
        >>> from eblvm_lit.energies.spectral import SpectralEnergy
        >>> from eblvm_lit.networks.mlp import MLP
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> from eblvm_lit.posteriors.gaussian import LinearGaussianPosterior
        >>> bidvl = BiDVL(
        ...     energy=SpectralEnergy(network=MLP(sizes=[2, 8])), posterior=LinearGaussianPosterior(v_dim=2, h_dim=3),
        ...     generator=nn.Linear(3, 2), loss=FullLatentTerm(ratio=ConstantRatio()), optimizer=Adam(lr=1e-3))
        >>> list(bidvl.param_groups())
        ['upper', 'lower']
    """

    def __init__(
        self,
        *,
        energy: Energy,
        posterior: GaussianPosterior,
        generator: nn.Module,
        loss: BiDVLLoss,
        optimizer: Optimizer,
        lower_optimizer: Optimizer | None = None,
        encoder_optimizer: Literal["own", "shared"] = "shared",
        n_lower_steps: PositiveInt = 1,
        n_unroll: NonNegativeInt = 0,
        upper_first: bool = True,
        share_latents: bool = True,
        seed: Seed = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(energy=energy, posterior=posterior, generator=generator, seed=seed, compile=compile)
        check_fit(energy, loss)
        self.loss = loss
        self.n_lower_steps = n_lower_steps
        self.optimizer = optimizer
        self.lower_optimizer = lower_optimizer or optimizer
        self.upper_first = upper_first
        self.share_latents = share_latents
        self.encoder_group = ParamGroup("omega", self.lower_optimizer, "encoder.")
        self.shares_optimizer = loss.regularises_encoder and encoder_optimizer == "shared"
        self.unroll = Unroll(n_unroll=n_unroll)

    @property
    def title(self) -> str:
        """Return a readable name of the method, with the number K of lower steps and the number N of unrolled steps."""
        return f"BiDVL: bi-level doubly variational learning, K = {self.n_lower_steps}, {self.unroll.title}"

    def param_groups(self) -> dict[str, ParamGroup]:
        """Return the parameter groups: the energy in the upper level, and encoder and generator in the lower level.

        If the loss trains the encoder in the upper level with a separate optimizer, this step has its own group.
        """
        upper = {"upper": ParamGroup("theta", self.optimizer)}
        if self.loss.regularises_encoder and not self.shares_optimizer:
            upper["upper_encoder"] = self.encoder_group
        rule = self.lower_optimizer
        # In the authors' code, the generator has no gradient yet when the shared optimizer takes its first step, which
        # trains the encoder. PyTorch's optimizers skip parameters without a gradient.
        if self.shares_optimizer and self.upper_first:
            rule = LateStart(rule=rule, late="generator.")
        lower = {"lower": ParamGroup("omega", rule)}
        return {**upper, **lower} if self.upper_first else {**lower, **upper}

    def draw_noise(self, v: Tensor, generator: torch.Generator) -> dict[str, Any]:
        """Draw the random numbers of the upper and the lower level."""
        draws = {**dict.fromkeys(self.groups, 1), "lower": self.n_lower_steps, "unrolled": self.unroll.n_draws}
        noise: dict[str, Any] = {name: [self.draw(v, generator) for _ in range(n)] for name, n in draws.items()}
        noise["upper"] = noise["upper"][0]
        # The upper-level steps on the encoder and on the energy use the same samples, and so the same noise.
        if "upper_encoder" in noise:
            noise["upper_encoder"] = noise["upper"]
        if self.share_latents:
            noise["lower"][0]["h_hat"] = noise["upper"]["h_hat"]
        return noise

    def iteration(self, state: TrainState, v: Tensor, noise: dict[str, Any]) -> TrainState:
        """Run one iteration of Kan et al. 2022, Algorithm 1.

        By default the upper level comes first, as in the authors' code.
        """
        samples = None
        if self.upper_first:
            samples = self.generate(state, noise["upper"])  # v_hat = G(h_hat), h_hat ~ N(0, I)
            state = self.upper_level(state, v, noise, samples)
        for k in range(self.n_lower_steps):  # omega <- omega - beta (A + B + C), Eqs. 11-13
            # If the generator has not changed since the upper level, the first lower step reuses the samples.
            if samples is None or k > 0 or not self.share_latents or self.shares_optimizer:
                samples = self.generate(state, noise["lower"][k])
            state = self.descend_terms(state, "lower", v, noise["lower"][k], samples)
        if not self.upper_first:
            state = self.upper_level(state, v, noise, self.generate(state, noise["upper"]))
        return state

    def upper_level(self, state: TrainState, v: Tensor, noise: dict[str, Any], samples: Samples) -> TrainState:
        """Make the upper-level step on the energy (Eq. 14) and, if the loss regularises the encoder, on the encoder.

        Eq. 14 is psi' <- psi' - alpha D, where psi' are the parameters of the energy.
        """
        found = self.gradient(state, "upper", v, noise["upper"], samples)
        loss = found.loss
        grads = found.grads
        if self.unroll.n_draws > 0:
            loss, grads, _ = self.unroll(self.bilevel_problem(state, v, noise), state.theta, state.params["omega"])
        state = self.update(state, "upper", loss, grads, found.record, found.buffers)
        if self.loss.regularises_encoder:
            state = self.regularise_encoder(state, v, noise["upper"], samples)
        return state

    def regularise_encoder(self, state: TrainState, v: Tensor, noise: Noise, samples: Samples) -> TrainState:
        """Make the upper-level step on the encoder, with a separate optimizer or with the lower level's optimizer."""
        if not self.shares_optimizer:
            return self.descend_terms(state, "upper_encoder", v, noise, samples)
        found = self.gradient(state, "upper_encoder", v, noise, samples, self.encoder_group)
        grads = {name: found.grads.get(name, torch.zeros_like(p)) for name, p in state.params["omega"].items()}
        return self.update(state, "lower", found.loss, grads, found.record, found.buffers)

    @property
    def terms(self) -> dict[str, TermFunction]:
        """Return a dict that maps the name of each optimizer step to a function that computes its loss terms."""
        return {
            "upper": self.loss.upper,
            "upper_encoder": lambda networks, _, noise: (self.loss.upper_encoder(networks, noise), {}),
            "lower": lambda networks, v, noise: (self.loss.lower(networks, v, noise), {}),
        }

    def bilevel_problem(self, state: TrainState, v: Tensor, noise: dict[str, Any]) -> BilevelProblem:
        """Return the upper and lower losses as functions of all networks' parameters; unrolling needs these functions.

        The parameters are theta (the energy) and omega (the encoder and the generator). An evaluation of the losses
        does not change the state's buffers.
        """

        def networks(theta: Params, omega: Params, fixed: Params) -> Networks:
            return self.networks_at(state, {"theta": theta, "omega": omega}, fixed)[0]

        def upper(theta: Params, omega: Params) -> Tensor:
            at = networks(theta, omega, omega)
            return _total(self.loss.upper(at, v, {**noise["upper"], "v_hat": at.samples(noise["upper"])})[0])

        def lower(theta: Params, omega: Params, fixed: Params, i: int) -> Tensor:
            return _total(self.loss.lower(networks(theta, omega, fixed), v, noise["unrolled"][i]))

        return BilevelProblem(
            upper=upper,
            lower=lambda theta, omega, i: lower(theta, omega, omega, i),
            optimizer=self.groups["lower"].optimizer,
            state=state.optimizers["lower"],
            lr=state.lrs["lower"],
            lower_gradient=lambda theta, omega, i: grad(lambda own: lower(theta, own, omega, i))(omega),
            mean=None if state.minibatch is WHOLE else state.minibatch.mean_of,
        )

    def validation_loss(self, v: Tensor, generator: torch.Generator) -> Tensor:
        r"""Compute the squared error :math:`\|G(\mu(v)) - v\|^2` of each example's reconstruction, shape (B,)."""
        return reconstruction_error(v, self.generator(cast(GaussianPosterior, self.posterior).mean(v)))

    def float32_reason(self) -> str | None:
        """Return the reason why unrolled lower steps need float32, or None if no steps are unrolled."""
        return "as the upper level differentiates unrolled steps" if self.unroll.n_draws > 0 else None


def _total(terms: Terms) -> Tensor:
    return torch.stack([term.mean() for term in terms.values()]).sum()
