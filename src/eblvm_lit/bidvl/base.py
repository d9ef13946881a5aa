"""The base of methods whose levels descend sums of named terms: BiDVL, and the baselines its papers argue from."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from eblvm_lit.bidvl.losses import Terms
from eblvm_lit.bidvl.players import Noise, Players, Samples, draw_noise
from eblvm_lit.core.autograd import grad_and_value, vjp
from eblvm_lit.core.functional import Params, bind, buffers_of, clone_buffers, tree_map
from eblvm_lit.energies.base import Energy
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.base import Method
from eblvm_lit.methods.levels import Gradient, TrainState
from eblvm_lit.posteriors.gaussian import GaussianPosterior

__all__ = ["Losses", "TermMethod"]

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
SAMPLES = "omega.generator."  # the parameters that v_hat is a function of
# Players and noise -> the terms that are descended, and what else is for the record: each of shape (B,), by name.
Losses = Callable[[Players, Noise], tuple[Terms, Terms]]


class TermMethod(Method):
    """An energy, an encoder and a generator, of which a baseline leaves one out, and levels that descend their terms.

    In every level the others' running statistics and spectral norms stay as they are, as their parameters do: a pass in
    training moves copies, of which those of the level's own player are kept.

    Args:
        generator: G(h; omega_2), a module that maps h (B, H) to v (B, *event).
        energy: Player ``theta``, if there is one.
        posterior: The encoder, which moves with the generator as player ``omega``, if there is one.
        seed, compile: As in :class:`~eblvm_lit.methods.base.Method`.
    """

    divergence = None
    objective = None

    def __init__(
        self,
        *,
        generator: nn.Module,
        energy: Energy | None = None,
        posterior: GaussianPosterior | None = None,
        seed: int = 0,
        compile: bool | str = "auto",
    ) -> None:
        super().__init__(seed=seed, compile=compile)
        self.energy = energy
        both = {"encoder": posterior, "generator": generator}
        self.omega = nn.ModuleDict({name: module for name, module in both.items() if module is not None})

    @property
    def posterior(self) -> GaussianPosterior | None:
        """The encoder."""
        return self.omega["encoder"] if "encoder" in self.omega else None  # noqa: SIM401 - it has no get

    @property
    def generator(self) -> nn.Module:
        """The generator."""
        return self.omega["generator"]

    @property
    def h_dim(self) -> int:
        """Number of latents."""
        return self.generator.h_dim if self.posterior is None else self.posterior.h_dim

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one v."""
        return (self.generator if self.energy is None else self.energy).event_shape

    def players(self) -> dict[str, nn.Module]:
        """The energy; encoder and generator, which move together."""
        both = {"theta": self.energy, "omega": self.omega}
        return {name: player for name, player in both.items() if player is not None}

    @abstractmethod
    def losses(self, level: str, v: Tensor) -> Losses:
        """What a level descends at data v (B, *event)."""

    def memory(self) -> dict[str, Tensor]:
        """Running statistics, and the vectors of spectral norms."""
        return {
            f"{name}.{key}": buffer
            for name, player in self.players().items()
            for key, buffer in buffers_of(player).items()
        }

    def check_batch_size(self, n: int) -> None:
        """Refuse batches that have no statistics.

        Raises:
            ConfigError: For a batch of one, with batch normalisation.
        """
        if n == 1 and any(isinstance(module, BATCH_NORMS) for module in self.omega.modules()):
            raise ConfigError(
                "Batch normalisation needs two examples, and a batch has one: choose data.batch_size and "
                "data.eval_batch_size >= 2 that leave no single example over."
            )

    def _draw(self, v: Tensor, generator: torch.Generator) -> Noise:
        return draw_noise(v, self.h_dim, generator)

    def gradient(
        self,
        situation: TrainState,
        player: str,
        terms: Losses,
        noise: Noise,
        *,
        part: str = "",
        reuse: bool = False,
        only: str | None = None,
    ) -> Gradient:
        """The gradient of the terms' sum in a player's parameters, and the player's buffers after the passes.

        v_hat is computed once: who descends the generator's parameters has the gradient in v_hat first, and then goes
        back through the pass, which may be one that an earlier level needed.

        Args:
            situation: Where the step starts.
            player: ``theta`` or ``omega``.
            terms: What is descended.
            noise: Of the step; with no h_hat no v_hat is made.
            part: What the names of the parameters that move begin with.
            reuse: Whether v_hat may be that of an earlier level.
            only: The term whose gradient it is, if not that of all.
        """
        samples = self._samples(situation, noise, reuse)
        given = {} if samples is None else {"v_hat": samples.v_hat}
        moving = given if player == "omega" and SAMPLES.startswith(f"{player}.{part}") else {}

        def loss(own: Params, moving: Params) -> tuple[Tensor, tuple[dict[str, Tensor], Params]]:
            params = {**situation.params, player: {**situation.params[player], **own}}
            players, moved = self.players_at(situation, params, situation.params["omega"], samples)
            descended, seen = terms(players, {**noise, **given, **moving})
            record = {name: value.mean() for name, value in {**descended, **seen}.items()}
            total = torch.stack([record[name] for name in descended if only in (None, name)]).sum()
            return total, (record, moved[player])

        own = {name: p for name, p in situation.params[player].items() if name.startswith(part)}
        (grads, back), (value, (record, buffers)) = grad_and_value(loss, argnums=(0, 1), has_aux=True)(own, moving)
        if back:
            grads = {**grads, **tree_map(torch.add, samples.pull(back["v_hat"]), grads)}
        kept = {f"{player}.{name}": b for name, b in buffers.items() if name.startswith(part)}
        reusable = {} if samples is None else {SAMPLES: samples}
        return Gradient(value, grads, diagnostics=record, memory=kept, reusable=reusable)

    def _samples(self, situation: TrainState, noise: Noise, reuse: bool) -> Samples | None:
        """G(h_hat), of an earlier level or computed here."""
        if "h_hat" not in noise:
            return None
        if reuse and SAMPLES in situation.reusable:
            return situation.reusable[SAMPLES]

        def made(own: Params) -> tuple[Tensor, Params]:
            moved = clone_buffers(_part(situation.memory, SAMPLES))
            return bind(self.generator, {**own, **moved})(noise["h_hat"]), moved

        v_hat, pull, moved = vjp(made, _part(situation.params["omega"], "generator."))

        def named(cotangent: Tensor) -> Params:
            return {f"generator.{name}": g for name, g in pull(cotangent).items()}

        return Samples(v_hat, named, {f"generator.{name}": b for name, b in moved.items()})

    def players_at(
        self, situation: TrainState, params: Mapping[str, Params], fixed: Params, samples: Samples | None = None
    ) -> tuple[Players, dict[str, Params]]:
        """Views of all at given parameters, and the buffers that they move, player by player.

        Args:
            situation: Whose buffers they start from.
            params: Of ``theta`` and ``omega``.
            fixed: Those of ``omega`` that the frozen encoder has; it moves the encoder's running statistics.
            samples: A pass of the generator that comes first.
        """
        moved = {name: clone_buffers(_part(situation.memory, f"{name}.")) for name in params}
        if samples is not None:
            moved["omega"] |= clone_buffers(samples.buffers)
        omega = bind(self.omega, {**params["omega"], **moved["omega"]})
        energy = None if self.energy is None else bind(self.energy, {**params["theta"], **moved["theta"]})
        if self.posterior is None:
            return Players(energy, None, None, omega["generator"]), moved
        frozen = bind(self.omega, {**fixed, **moved["omega"]})
        return Players(energy, omega["encoder"], frozen["encoder"], omega["generator"]), moved


def _part(named: Mapping[str, Tensor], prefix: str) -> Params:
    return {name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)}
