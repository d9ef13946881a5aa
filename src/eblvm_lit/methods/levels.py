"""One level of an alternating method, and the pure function that runs all levels once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from eblvm_lit.core.functional import Params, tree_map
from eblvm_lit.distributed.reductions import params_over_ranks
from eblvm_lit.distributed.shards import current_shard
from eblvm_lit.optimizers.base import Optimizer, State

__all__ = ["Gradient", "Level", "TrainState", "run_levels"]


class TrainState(NamedTuple):
    """All an iteration starts from: nothing else enters it, and nothing of it is changed.

    Attributes:
        params: Parameters of each player (``theta``, ``phi``) by name.
        states: Optimizer state of each level.
        lrs: Learning rate of each level.
        memory: What else lasts from one iteration to the next, such as persistent chains.
        reusable: What earlier levels of this iteration have computed and later ones need, under the beginning of the
            names of the parameters it is a function of, player first; gone as soon as one of these moves.
    """

    params: dict[str, Params]
    states: dict[str, State]
    lrs: dict[str, Tensor]
    memory: dict[str, Tensor] = {}  # noqa: RUF012 - never changed, as nothing of a situation is
    reusable: dict[str, Any] = {}  # noqa: RUF012


class Gradient(NamedTuple):
    """What a level's step moves along. Where processes share a minibatch, means over the rows of this one.

    Attributes:
        loss: A number, for the record.
        grads: The gradient with respect to the player's parameters.
        diagnostics: Other numbers for the record, by name.
        memory: New values of what lasts, by name; the same in all processes.
        reusable: See :attr:`TrainState.reusable`.
    """

    loss: Tensor
    grads: Params
    diagnostics: dict[str, Tensor] = {}  # noqa: RUF012
    memory: dict[str, Tensor] = {}  # noqa: RUF012
    reusable: dict[str, Any] = {}  # noqa: RUF012


@dataclass(frozen=True)
class Level:
    """Some steps on one player's parameters.

    Attributes:
        name: ``lower``, ``upper``, ...
        player: Whose parameters it moves: ``theta``, ``phi``, ...
        n_steps: How many steps an iteration.
        optimizer: Its update rule.
        noise: (v, generator) -> the noise of all its steps, drawn before the iteration.
        gradient: (situation, v, noise, step) -> the gradient with respect to the player's parameters that move.
        part: What the names of those begin with; the others are as if they were another player's.
    """

    name: str
    player: str
    n_steps: int
    optimizer: Optimizer
    noise: Callable[[Tensor, torch.Generator], Any]
    gradient: Callable[[TrainState, Tensor, Any, int], Gradient]
    part: str = ""

    def owns(self, name: str) -> bool:
        """Whether a parameter of the player moves."""
        return name.startswith(self.part)

    def touches(self, prefix: str) -> bool:
        """Whether it moves a parameter whose name, player first, may begin with a prefix."""
        own = f"{self.player}.{self.part}"
        return own.startswith(prefix) or prefix.startswith(own)


def _over_ranks(found: Gradient) -> Gradient:
    """The whole minibatch's gradient and numbers: the one reduction of a step."""
    if current_shard() is None:
        return found
    numbers = {"loss": found.loss, **found.diagnostics}
    together = params_over_ranks({**{("grad", k): g for k, g in found.grads.items()}, **numbers})
    grads = {k: together["grad", k] for k in found.grads}
    diagnostics = {name: together[name] for name in found.diagnostics}
    return found._replace(loss=together["loss"], grads=grads, diagnostics=diagnostics)


def _norm(grads: Params) -> Tensor:
    return torch.stack([g.square().sum() for g in grads.values()]).sum().sqrt()


def _clip(grads: Params, max_norm: float) -> Params:
    factor = (max_norm / (_norm(grads) + 1e-6)).clamp(max=1.0)
    return tree_map(lambda g: g * factor, grads)


def run_levels(
    levels: Sequence[Level],
    situation: TrainState,
    v: Tensor,
    noise: Mapping[str, Any],
    *,
    in_place: bool = False,
) -> tuple[TrainState, dict[str, Tensor]]:
    """Run every level's steps in order: one iteration, as a pure function.

    Args:
        levels: What alternates.
        situation: Where the iteration starts.
        v: The minibatch, shape (B, *event).
        noise: Each level's noise.
        in_place: Write the steps into the parameters and states of ``situation``: it is no pure function then, and a
            faster one.

    Returns:
        Where it ends; and, for each level with a step, loss, gradient norm (before clipping) and diagnostics of its
        last step, under ``<level>_loss``, ``<level>_grad_norm`` and ``<level>_<diagnostic>``.
    """
    record: dict[str, Tensor] = {}
    for level in levels:
        for step in range(level.n_steps):
            found = _over_ranks(level.gradient(situation, v, noise[level.name], step))
            grads = found.grads
            if step == level.n_steps - 1:
                values = {"loss": found.loss, "grad_norm": _norm(grads), **found.diagnostics}
                record |= {f"{level.name}_{name}": value for name, value in values.items()}
            if level.optimizer.clip_norm is not None:
                grads = _clip(grads, level.optimizer.clip_norm)
            whole = situation.params[level.player]
            own = {name: p for name, p in whole.items() if level.owns(name)}
            update = level.optimizer.update_ if in_place else level.optimizer.update
            moved, state = update(own, grads, situation.states[level.name], situation.lrs[level.name])
            situation = situation._replace(
                params={**situation.params, level.player: {**whole, **moved}},
                states={**situation.states, level.name: state},
                memory={**situation.memory, **found.memory},
                reusable={
                    prefix: value
                    for prefix, value in {**situation.reusable, **found.reusable}.items()
                    if not level.touches(prefix)
                },
            )
    return situation, record
