"""The LightningModule all methods share: it owns the alternation of levels."""

from __future__ import annotations

import inspect
import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from eblvm_lit.core.autograd import plain_autograd
from eblvm_lit.core.fast_paths import CompilationError, compile_step, is_compiled
from eblvm_lit.core.functional import copy_tree, params_of
from eblvm_lit.core.seeding import derive_seed, keyed_generator
from eblvm_lit.distributed.ranks import rank_and_size
from eblvm_lit.distributed.shards import Shard, checked_shard, row_axes, shard_of, sharing, take_rows
from eblvm_lit.divergences.base import Divergence
from eblvm_lit.energies.base import Energy
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.checkpoint_identity import class_name, counted_in_blocks
from eblvm_lit.methods.levels import Level, TrainState, run_levels
from eblvm_lit.networks.batch_norm import check_batch_norms
from eblvm_lit.objectives.base import Objective
from eblvm_lit.optimizers.lightning import StatefulOptimizer
from eblvm_lit.posteriors.base import Posterior
from eblvm_lit.utils.memory import out_of_memory

__all__ = ["Method", "MethodParts"]

log = logging.getLogger(__name__)


class MethodParts(NamedTuple):
    """What a method trains, and what it trains by: what metrics, figures and samplers ask for.

    Attributes:
        energy: E(v, h) or F(v); None for a method without an energy, as the VAE.
        posterior: q(h|v), or BiDVL's encoder.
        generator: A module that maps h (B, H) to v (B, *event).
        objective: The functional of the score that is minimised.
        divergence: What fits the posterior.
    """

    energy: Energy | None = None
    posterior: Posterior | None = None
    generator: nn.Module | None = None
    objective: Objective | None = None
    divergence: Divergence | None = None


class Method(pl.LightningModule):
    """One iteration = one minibatch = one step of every level in turn, as a pure function that may be compiled.

    A subclass names its players (whose parameters move) and its levels (in which order, by which gradient), and gives
    a validation loss; nothing else. Lightning's ``global_step`` counts iterations, whatever K and N are, because only
    the last level's optimizer is stepped through Lightning. Several processes share each minibatch, and do what one
    would, up to rounding: see :mod:`eblvm_lit.distributed.reductions`.

    Args:
        seed: All noise is a function of this and the iteration: a resumed run draws what the first would have.
        compile: Whether the iteration is compiled; ``auto`` does where a compiler is found and the run is long enough.

    Attributes:
        records: Losses and gradient norms of each iteration of the last block, by iteration and name.
        stopping: Set by whoever wants the block in hand to end with the iteration in hand; with one process.
        description: The run's configuration as plain containers, kept in checkpoints.
    """

    def __init__(self, *, seed: int = 0, compile: bool | Literal["auto"] = "auto") -> None:
        super().__init__()
        if compile not in (True, False, "auto"):
            raise ConfigError(f"method.compile is auto, true or false, not {compile!r}.")
        self.automatic_optimization = False
        self.seed, self.compile_mode = seed, compile
        self.records: dict[int, dict[str, Tensor]] = {}
        self.stopping = False
        self._compiled: Callable[..., dict[str, Tensor]] | None = None
        self._full_batch: int | None = None  # the batch size that is compiled for
        self._generator: torch.Generator | None = None
        self._row_axes: Any = None  # where the rows of the minibatch are in its noise
        self.description: dict[str, Any] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        """As any module's. Lightning notes the hook it is in some 20 times an iteration: no parameter, no search."""
        if name == "_current_fx_name":
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    # ------------------------------------------------------------------ what a method says about itself

    @abstractmethod
    def players(self) -> Mapping[str, nn.Module]:
        """Whose parameters move: ``theta`` (the model), ``phi`` (the posterior), ..."""

    @abstractmethod
    def levels(self) -> Sequence[Level]:
        """The levels in the order they run; the last one is the one Lightning counts."""

    @abstractmethod
    def validation_loss(self, v: Tensor, generator: torch.Generator) -> Tensor:
        """The loss by which models are selected, per example, shape (B,)."""

    @property
    def parts(self) -> MethodParts:
        """What this method has; None where it has no such part."""
        return MethodParts(*(getattr(self, name, None) for name in MethodParts._fields))

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one v: that of the energy, unless the method has none."""
        return self.energy.event_shape

    def memory(self) -> dict[str, Tensor]:
        """Buffers, other than parameters, that an iteration moves and a checkpoint keeps, by name."""
        return {}

    def check_batch_size(self, n: int) -> None:
        """Refuse batches of n examples; asked before the first iteration, of every size that will come.

        Raises:
            ConfigError: If the method cannot use them.
        """

    def failure_hint(self, quantity: str) -> str | None:  # noqa: ARG002 - part of the contract
        """What the user can do where a quantity of :attr:`diagnostics`, named without its level, is not finite."""
        return None

    def memory_hints(self) -> list[str]:
        """What makes an iteration need less memory, the most effective first."""
        return ["lower data.batch_size"]

    def inner_steps(self) -> int:
        """Gradient evaluations in one iteration, unrolled ones included."""
        return sum(level.n_steps for level in self.levels())

    # ------------------------------------------------------------------ the iteration

    def situation(self, optimizers: Mapping[str, StatefulOptimizer], lrs: Mapping[str, Tensor]) -> TrainState:
        """Where the next iteration starts; the tensors are the live ones."""
        return TrainState(
            params={name: params_of(player) for name, player in self.players().items()},
            states={name: optimizer.functional_state() for name, optimizer in optimizers.items()},
            lrs=dict(lrs),
            memory=self.memory(),
        )

    def draw_noise(self, v: Tensor, generator: torch.Generator) -> dict[str, Any]:
        """The noise of one iteration, level by level."""
        return {level.name: level.noise(v, generator) for level in self.levels()}

    def draw_shared_noise(self, v: Tensor, generator: torch.Generator, share: Shard | None) -> dict[str, Any]:
        """The noise that goes with this process' rows v, of what is drawn for the whole minibatch."""
        if share is None:
            return self.draw_noise(v, generator)

        def draw(n: int, generator: torch.Generator) -> dict[str, Any]:
            return self.draw_noise(v.new_empty(n, *v.shape[1:]), generator)

        if self._row_axes is None:
            self._row_axes = row_axes(partial(draw, generator=torch.Generator(v.device)))
        return take_rows(draw(share.n, generator), self._row_axes, share)

    def advance(self, situation: TrainState, v: Tensor, noise: Mapping[str, Any]) -> dict[str, Tensor]:
        """Run one iteration and write its result into the tensors of ``situation``."""
        # A compiler makes one kernel of a pure step and its copies.
        in_place = not torch.compiler.is_compiling()
        after, record = run_levels(self.levels(), situation, v, noise, in_place=in_place)
        with torch.no_grad():
            copy_tree(situation.params, after.params)
            copy_tree(situation.states, after.states)
            copy_tree(situation.memory, after.memory)
        return record

    def _step(self, situation: TrainState, v: Tensor, noise: Mapping[str, Any]) -> dict[str, Tensor]:
        """One iteration, compiled or not. A short last batch is not worth a compilation of its own."""
        if self._compiled is not None and len(v) == self._full_batch:
            try:
                return self._compiled(situation, v, noise)
            except CompilationError as error:  # raised before anything was run
                self._give_up_compiling(error)
        with plain_autograd():
            return self.advance(situation, v, noise)

    def _give_up_compiling(self, error: CompilationError) -> None:
        if self.compile_mode is True:
            raise ConfigError(f"method.compile=true, but {error}: use method.compile=auto or false.") from error
        log.warning("compile=auto: running eagerly, because %s.", error)
        self._compiled = None

    # ------------------------------------------------------------------ Lightning's side

    @property
    def iteration(self) -> int:
        """Iterations done so far."""
        return self.trainer.global_step

    @property
    def diagnostics(self) -> dict[str, Tensor]:
        """Losses and gradient norms of the last iteration, by name."""
        return next(reversed(self.records.values()), {})

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        """One optimizer a level, in the order of the levels."""
        players = self.players()

        def moved(level: Level) -> dict[str, nn.Parameter]:
            named = players[level.player].named_parameters()
            return {name: p for name, p in named if p.requires_grad and level.owns(name)}

        return [StatefulOptimizer(moved(level), level.optimizer) for level in self.levels()]

    def on_fit_start(self) -> None:
        """Decide about compilation, now that device and length of the run are known."""
        remaining = self.trainer.max_steps - self.iteration
        wanted = is_compiled(self.compile_mode, remaining, self.inner_steps(), self.device)
        self._compiled = compile_step(self.advance, self.device) if wanted else None
        data = self.trainer.datamodule
        self._full_batch = min(data.batch_size, len(data.splits.train))
        for n in data.batch_sizes():
            self.check_batch_size(n)
        for n in data.train_batch_sizes():
            shard_of(n)
        check_batch_norms(self)
        self._generator = torch.Generator(self.device)
        # Consecutive seeds: two iterations of one run can never draw the same noise.
        # The same in all processes: each takes its rows of the whole minibatch's noise.
        self._noise_seed = derive_seed(self.seed, "noise", 0)
        largest = torch.finfo(torch.get_default_dtype()).max
        for level in self.levels():
            if level.optimizer.lr > largest:
                raise ConfigError(
                    f"The {level.name} level's lr must be at most {largest:.4g}, not {level.optimizer.lr}."
                )
        self._lrs = {level.name: torch.zeros((), device=self.device) for level in self.levels()}

    def training_step(self, block: Tensor | list[Tensor], batch_idx: int) -> None:  # noqa: ARG002 - iterations count
        """One iteration for each minibatch: Lightning's loop around this costs more than a small iteration."""
        self.records = {}
        wrapped, levels = self.optimizers(), self.levels()
        wrapped = wrapped if isinstance(wrapped, list) else [wrapped]
        raw = {level.name: optimizer.optimizer for level, optimizer in zip(levels, wrapped, strict=True)}
        situation = self.situation(raw, self._lrs)  # live tensors: it is where every next iteration starts
        for v in [block] if isinstance(block, Tensor) else block:
            iteration = self.iteration
            generator = self._generator.manual_seed((self._noise_seed + iteration) % 2**32)
            share = checked_shard(v, self.trainer.datamodule.rows_at(iteration))
            noise = self.draw_shared_noise(v, generator, share)
            for level in levels:
                rule = level.optimizer
                lr = rule.schedule(rule.lr, iteration, self.trainer.max_steps)
                raw[level.name].param_groups[0]["lr"] = lr
                self._lrs[level.name].fill_(lr)
            try:  # the one step Lightning sees and counts
                with sharing(share):
                    self.records[iteration + 1] = wrapped[-1].step(closure=partial(self._step, situation, v, noise))
            except torch.OutOfMemoryError as error:
                raise out_of_memory(error, f"in iteration {iteration + 1}", self.memory_hints()) from error
            if self.stopping:
                return

    # Lightning asks for the signature in every call; this is where ``inspect`` looks first.
    training_step.__signature__ = inspect.signature(training_step)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Count as this run does."""
        counted_in_blocks(checkpoint, self.trainer.datamodule.iterations_per_batch)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what tells whose checkpoint this is; plain containers only, so that it loads as data."""
        own = {"method": class_name(self), "iteration": self.iteration, "config": self.description}
        checkpoint["eblvm_lit"] = own

    def validation_step(self, v: Tensor, batch_idx: int) -> None:
        """Log ``val/loss`` with noise that is the same at every validation."""
        rank, size = rank_and_size()  # processes are dealt whole batches
        if len(v) == 0:
            self.log("val/loss", 0.0, batch_size=0, logger=False, sync_dist=True)
            return
        generator = keyed_generator(self.seed, "validation", rank + size * batch_idx, device=v.device)
        try:
            with plain_autograd():  # as an eager iteration: with it activations may be recomputed instead of kept
                loss = self.validation_loss(v, generator).detach()
        except torch.OutOfMemoryError as error:
            raise out_of_memory(error, "in a validation", ["lower data.eval_batch_size"]) from error
        # Lightning's loggers are left out: they would be told of an iteration one too early.
        self.log("val/loss", loss.mean(), batch_size=len(v), logger=False, sync_dist=size > 1)
