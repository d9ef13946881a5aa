"""The base of methods whose levels descend sums of named terms: BiDVL, and the baselines its papers argue from."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from eblvm_lit.differentiation import grad_and_value
from eblvm_lit.doubly_variational.players import Noise, Players, draw_noise
from eblvm_lit.doubly_variational.variants import Terms
from eblvm_lit.energies.base import Energy
from eblvm_lit.errors import ConfigError
from eblvm_lit.functional import Params, bind, buffers_of, movable
from eblvm_lit.methods.base import Method
from eblvm_lit.methods.levels import Gradient, Situation
from eblvm_lit.posteriors.gaussian import GaussianPosterior

__all__ = ["TermMethod"]

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


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
                "Batch normalisation needs two examples, and a batch has one: choose a data.batch_size >= 2 that "
                "leaves no single example over."
            )

    def _draw(self, v: Tensor, generator: torch.Generator) -> Noise:
        return draw_noise(v, self.h_dim, generator)

    def _players(self, params: Mapping[str, Params], fixed: Params, moved: Mapping[str, Params]) -> Players:
        """Views of all with given parameters and buffers; the frozen encoder moves the encoder's running statistics."""
        omega = bind(self.omega, {**params["omega"], **moved["omega"]})
        frozen = bind(self.omega, {**fixed, **moved["omega"]})
        energy = None if self.energy is None else bind(self.energy, {**params["theta"], **moved["theta"]})
        if "encoder" not in omega:
            return Players(energy, None, None, omega["generator"])
        return Players(energy, omega["encoder"], frozen["encoder"], omega["generator"])

    def gradient(
        self, situation: Situation, player: str, terms: Callable[[Players], Terms], part: str = ""
    ) -> Gradient:
        """The gradient of the terms' sum in a player's parameters, and the player's buffers after the passes.

        Args:
            situation: Where the step starts.
            player: ``theta`` or ``omega``.
            terms: The players as they are there -> each term, shape (B,), by name.
            part: What the names of the parameters that move begin with.
        """
        params = situation.params

        def loss(own: Params) -> tuple[Tensor, tuple[dict[str, Tensor], Params]]:
            moved = {name: movable(_part(situation.memory, f"{name}.")) for name in params}
            players = self._players({**params, player: {**params[player], **own}}, params["omega"], moved)
            means = {name: term.mean() for name, term in terms(players).items()}
            return torch.stack([*means.values()]).sum(), (means, moved[player])

        own = {name: p for name, p in params[player].items() if name.startswith(part)}
        grads, (value, (means, buffers)) = grad_and_value(loss, has_aux=True)(own)
        kept = {f"{player}.{name}": b for name, b in buffers.items() if name.startswith(part)}
        return Gradient(value, grads, diagnostics=means, memory=kept)


def _part(memory: Mapping[str, Tensor], prefix: str) -> Params:
    return {name.removeprefix(prefix): value for name, value in memory.items() if name.startswith(prefix)}
