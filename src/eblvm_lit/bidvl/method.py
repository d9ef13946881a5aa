"""Bi-level doubly variational learning of energy-based latent variable models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from eblvm_lit.bidvl.base import Losses, TermMethod
from eblvm_lit.bidvl.fit import check_fit
from eblvm_lit.bidvl.losses import BiDVLLoss, Terms
from eblvm_lit.bidvl.players import Noise, Players
from eblvm_lit.bidvl.terms import reconstruction_error
from eblvm_lit.core.autograd import grad
from eblvm_lit.core.functional import Params
from eblvm_lit.energies.base import Energy
from eblvm_lit.errors import ConfigError
from eblvm_lit.hypergradients.base import BilevelProblem
from eblvm_lit.hypergradients.unroll import Unroll
from eblvm_lit.methods.levels import Gradient, Level, TrainState
from eblvm_lit.optimizers.base import Optimizer
from eblvm_lit.posteriors.gaussian import GaussianPosterior

__all__ = ["BiDVL"]


class BiDVL(TermMethod):
    r"""An energy, an encoder and a generator that learn from each other, without any chain.

    .. math:: \min_{\psi'} KL(q(v) q_{\omega_1} \| p_{\psi'}) - KL(p_{\omega_2} \| p_{\psi'}), \quad
        \min_{\omega} KL(q(v) q_{\omega_1} \| p_{\omega_2}) + KL(p_{\omega_2} \| p_{\psi'}), \quad
        p_{\psi'}(v, h) \propto e^{-E(v; \psi')} q(h | v; \omega_1)

    The upper level is one step on psi'; the lower one K steps on omega. The loss says what they descend.
    Reference: Kan et al. 2022, Algorithm 1, and code.

    Args:
        energy: E'(v; psi'), or E(v, h; psi) where the loss's is joint.
        posterior: The encoder q(h|v; omega_1).
        generator: G(h; omega_2), a module that maps h (B, H) to v (B, *event).
        loss: What both levels minimise.
        optimizer: Rule of the upper level.
        lower_optimizer: Rule of the lower level, and of the encoder's step in the upper one; optimizer if not given.
        n_lower_steps: K.
        n_unroll: N, lower steps that the upper one looks ahead, each dearer than a real one and kept in memory; the
            published results are without.
        upper_first: Whether the upper level comes first, as in the code; else second, as in Algorithm 1.
        share_latents: Whether the upper level and the first lower step have the same h_hat.
        seed: Seed of all noise.
        compile: Whether the iteration is compiled.

    Raises:
        ConfigError: For parts that do not fit together, or no lower step.

    Example:
        >>> from eblvm_lit.bidvl.ratios import ConstantRatio
        >>> from eblvm_lit.bidvl.losses import FullLatentTerm
        >>> from eblvm_lit.energies.spectral import SpectralEnergy
        >>> from eblvm_lit.networks.mlp import MLP
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> from eblvm_lit.posteriors.gaussian import LinearGaussianPosterior
        >>> bidvl = BiDVL(
        ...     energy=SpectralEnergy(network=MLP(sizes=[2, 8])), posterior=LinearGaussianPosterior(v_dim=2, h_dim=3),
        ...     generator=nn.Linear(3, 2), loss=FullLatentTerm(ratio=ConstantRatio()), optimizer=Adam(lr=1e-3))
        >>> [(level.name, level.player, level.n_steps) for level in bidvl.levels()]
        [('upper', 'theta', 1), ('upper_encoder', 'omega', 1), ('lower', 'omega', 1)]
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
        n_lower_steps: int = 1,
        n_unroll: int = 0,
        upper_first: bool = True,
        share_latents: bool = True,
        seed: int = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(energy=energy, posterior=posterior, generator=generator, seed=seed, compile=compile)
        if n_lower_steps < 1:
            raise ConfigError(f"n_lower_steps must be >= 1, or the generator never learns, not {n_lower_steps}.")
        check_fit(energy, posterior, generator, loss)
        self.loss, self.n_lower_steps = loss, n_lower_steps
        self.optimizer, self.lower_optimizer = optimizer, lower_optimizer or optimizer
        self.upper_first, self.share_latents = upper_first, share_latents
        self.unroll = Unroll(n_unroll=n_unroll)

    def levels(self) -> Sequence[Level]:
        """Upper, then lower, or the other way round."""
        upper = [Level("upper", "theta", 1, self.optimizer, self._draw, self._upper)]
        if self.loss.regularises_encoder:
            encoder = Level(
                "upper_encoder", "omega", 1, self.lower_optimizer, self._draw, self._upper_encoder, "encoder."
            )
            upper.append(encoder)
        lower = [Level("lower", "omega", self.n_lower_steps, self.lower_optimizer, self._draws, self._lower)]
        return upper + lower if self.upper_first else lower + upper

    def inner_steps(self) -> int:
        """Unrolled ones included."""
        return super().inner_steps() + self.unroll.n_draws

    def memory_hints(self) -> list[str]:
        """Fewer unrolled steps, if there are any."""
        return [*self.unroll.memory_hints()[:1], *super().memory_hints()]

    def _draws(self, v: Tensor, generator: torch.Generator) -> list[Noise]:
        return [self._draw(v, generator) for _ in range(self.n_lower_steps)]

    def draw_noise(self, v: Tensor, generator: torch.Generator) -> dict[str, Any]:
        """The noise of one iteration, level by level."""
        noise = super().draw_noise(v, generator)
        if "upper_encoder" in noise:
            noise["upper_encoder"] = noise["upper"]
        if self.unroll.n_draws:
            noise["upper"]["unrolled"] = [self._draw(v, generator) for _ in range(self.unroll.n_draws)]
        if self.share_latents:
            noise["lower"][0]["h_hat"] = noise["upper"]["h_hat"]
        return noise

    def losses(self, level: str, v: Tensor) -> Losses:
        """What a level descends; the upper one's energy gap E(v) - E(v_hat) is for the record."""

        def upper(players: Players, noise: Noise) -> tuple[Terms, Terms]:
            energies = self.loss.energies(players, v, noise)
            return self.loss.descended(*energies), {"energy_gap": energies[0] - energies[1]}

        return {
            "upper": upper,
            "upper_encoder": lambda players, noise: (self.loss.upper_encoder(players, noise), {}),
            "lower": lambda players, noise: (self.loss.lower(players, v, noise), {}),
        }[level]

    def _upper(self, situation: TrainState, v: Tensor, noise: Noise, step: int) -> Gradient:  # noqa: ARG002
        found = self.gradient(situation, "theta", self.losses("upper", v), noise)
        if self.unroll.n_draws == 0:
            return found
        theta, omega = (situation.params[name] for name in ("theta", "omega"))
        loss, grads = self.unroll(self._problem(situation, v, noise), theta, omega)
        return found._replace(loss=loss, grads=grads)

    def _upper_encoder(self, situation: TrainState, v: Tensor, noise: Noise, step: int) -> Gradient:  # noqa: ARG002
        losses = self.losses("upper_encoder", v)
        return self.gradient(situation, "omega", losses, noise, part="encoder.", reuse=True)

    def _lower(self, situation: TrainState, v: Tensor, noise: Sequence[Noise], step: int) -> Gradient:
        reuse = step == 0 and self.share_latents and self.upper_first
        return self.gradient(situation, "omega", self.losses("lower", v), noise[step], reuse=reuse)

    def _problem(self, situation: TrainState, v: Tensor, noise: Noise) -> BilevelProblem:
        """The upper objective as a function of psi' and of an omega that is one of psi', too; all buffers stay."""

        def players(theta: Params, omega: Params, fixed: Params) -> Players:
            return self.players_at(situation, {"theta": theta, "omega": omega}, fixed)[0]

        def upper(theta: Params, omega: Params) -> Tensor:
            at = players(theta, omega, omega)
            return _total(self.loss.upper(at, v, {**noise, "v_hat": at.samples(noise)}))

        def lower(theta: Params, omega: Params, fixed: Params, i: int) -> Tensor:
            return _total(self.loss.lower(players(theta, omega, fixed), v, noise["unrolled"][i]))

        return BilevelProblem(
            upper=upper,
            lower=lambda theta, omega, i: lower(theta, omega, omega, i),
            optimizer=self.lower_optimizer,
            state=situation.states["lower"],
            lr=situation.lrs["lower"],
            lower_gradient=lambda theta, omega, i: grad(lambda own: lower(theta, own, omega, i))(omega),
        )

    def validation_loss(self, v: Tensor, generator: torch.Generator) -> Tensor:  # noqa: ARG002 - nothing is drawn
        r"""The squared error :math:`\|G(\mu(v)) - v\|^2` of the reconstruction, shape (B,)."""
        return reconstruction_error(v, self.generator(self.posterior.mean(v)))


def _total(terms: Terms) -> Tensor:
    return torch.stack([term.mean() for term in terms.values()]).sum()
