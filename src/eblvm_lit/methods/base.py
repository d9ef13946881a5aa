"""The LightningModule that all methods share: what a method says about itself, its steps, and Lightning's side."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cached_property, partial
from typing import Any, Literal, cast

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from eblvm_lit import __version__
from eblvm_lit.core.functional import Params, grad_and_value, params_of, plain_autograd
from eblvm_lit.core.minibatch import WHOLE, Minibatch
from eblvm_lit.core.ranges import Seed
from eblvm_lit.core.ranks import rank_and_size, sum_over_ranks
from eblvm_lit.core.seeding import derive_seed, keyed_generator
from eblvm_lit.core.shards import minibatch_of
from eblvm_lit.core.tensors import clip, copy_tree
from eblvm_lit.energies.base import Energy
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.parts import MethodParts
from eblvm_lit.methods.state import ParamGroup, Step, TrainState
from eblvm_lit.networks.layers import statistics_over
from eblvm_lit.optimizers.stateful import StatefulOptimizer
from eblvm_lit.utils.quantities import Declares, Quantity

__all__ = ["PRIOR_STATISTICS", "Method"]

PRIOR_STATISTICS = "prior_statistics"  # the place in checkpoints of what Method.load_prior_statistics takes


class Method(
    Declares,
    pl.LightningModule,
    ABC,
    emits={"loss": Quantity(-1), "train/*_loss": Quantity(-1), "train/*_grad_norm": Quantity()},
):
    """The base of all methods. A subclass writes its algorithm as :meth:`iteration`, in the paper's order and letters.

    One iteration is one minibatch, whatever K and N are: Lightning's ``global_step`` counts iterations, because only
    the last group's optimizer is stepped through Lightning. Several processes share each minibatch and compute what one
    process would, up to rounding: see :mod:`eblvm_lit.core.shards`.

    Args:
        seed: All noise is a function of the seed and the iteration, so that a resumed run repeats the first one's.
        compile: Whether the callback :class:`~eblvm_lit.training.callbacks.compiling.Compiling` compiles the iteration.

    Attributes:
        records: Losses and gradient norms of each iteration of the last call of Lightning's loop.
        compiled: What runs an iteration instead of :meth:`run_iteration`, where it is compiled.
        per_example: The names of the persistent buffers that have one row for each training example.
        fixed: The networks that no group moves, on purpose.
        stopping: Ends the iterations of the current call after the one in progress; set by callbacks.
        description: The run's configuration as plain containers, kept in checkpoints.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.methods.score_matching import ScoreMatching
        >>> from eblvm_lit.objectives.sm import SM
        >>> from eblvm_lit.optimizers.sgd import SGD
        >>> method = ScoreMatching(energy=GRBM(v_dim=2, h_dim=3), objective=SM(), optimizer=SGD(lr=0.1))
        >>> list(method.networks()), list(method.param_groups()), method.parts.energy
        (['theta'], ['model'], GRBM(event_shape=(2,), h_dim=3))
    """

    per_example: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()

    def __init__(self, *, seed: Seed = 0, compile: bool | Literal["auto"] = "auto") -> None:
        super().__init__()
        self.automatic_optimization = False
        self.seed = seed
        self.compile_mode = compile
        self.compiled: Callable[[TrainState, Tensor, Any], dict[str, Tensor]] | None = None
        self.stopping = False
        self.records: dict[int, dict[str, Tensor]] = {}
        self.description: dict[str, Any] = {}

    # ------------------------------------------------------------------ what a method says about itself

    @property
    @abstractmethod
    def parts(self) -> MethodParts:
        """The energy, posterior, ... of this method; None where it has no such part."""

    @abstractmethod
    def networks(self) -> dict[str, nn.Module]:
        """The modules whose parameters the state holds: ``theta`` (the model), ``phi`` (the posterior), ..."""

    @abstractmethod
    def param_groups(self) -> dict[str, ParamGroup]:
        """What each optimizer moves, by its name in the logs: ``model``; with two levels ``lower`` and ``upper``."""

    @abstractmethod
    def draw_noise(self, v: Tensor, generator: torch.Generator) -> Any:
        """All random numbers of one iteration with the minibatch v (B, *event)."""

    @abstractmethod
    def iteration(self, state: TrainState, v: Tensor, noise: Any) -> TrainState:
        """One iteration: the paper's algorithm, as a pure function of the state, the minibatch and the noise."""

    @abstractmethod
    def validation_loss(self, v: Tensor, generator: torch.Generator) -> Tensor:
        """The loss by which models are selected, per example, shape (B,)."""

    @property
    def title(self) -> str:
        """The method in words with its main numbers, for the first line of a run."""
        return type(self).__name__

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one v."""
        return cast(Energy, self.parts.energy).event_shape  # a method without an energy says it itself

    def persistent_buffers(self) -> dict[str, Tensor]:
        """Buffers, other than parameters, that an iteration moves and a checkpoint keeps, by name."""
        return {}

    def unshared_buffers(self) -> set[str]:
        """The names of the buffers that serve training only, which a model that is shared leaves out."""
        return set()

    def load_prior_statistics(self, values: Params) -> None:
        """Take the statistics of a generator's batch normalisation that were stored with the parameters, if any."""

    def keep_examples(self, n: int) -> None:
        """Make room for n training examples in the buffers :attr:`per_example`, unless there is that already."""

    def check_batch_size(self, n: int) -> None:
        """Refuse batches of n examples; asked before the first iteration, of every size that will come.

        Raises:
            ConfigError: If the method, or its objective, cannot use them.
        """
        if self.parts.objective is not None:
            self.parts.objective.check_batch_size(n)

    def check_processes(self, size: int) -> None:
        """Refuse to be trained by ``size`` processes; asked before the first iteration.

        Raises:
            ConfigError: If rows that are not a minibatch's, such as persistent chains, are too few to be divided.
        """

    def failure_hint(self, quantity: str) -> str | None:
        """What the user can do where a quantity of :attr:`diagnostics`, named without its group, is not finite."""
        return None

    def float32_reason(self) -> str | None:
        """Why ``trainer.precision=auto`` keeps this method in float32; None where the faster dtype is taken."""
        return None if self.parts.objective is None else self.parts.objective.float32_reason()

    def memory_hints(self) -> list[str]:
        """What makes an iteration need less memory, the most effective first."""
        return ["lower data.batch_size"]

    # ------------------------------------------------------------------ the steps of an iteration

    @cached_property
    def groups(self) -> dict[str, ParamGroup]:
        """:meth:`param_groups`, made once."""
        return self.param_groups()

    @cached_property
    def rates(self) -> dict[str, tuple[ParamGroup, int]]:
        """The learning rates of an iteration by name: of which group, and of how many iterations later."""
        return {name: (group, 0) for name, group in self.groups.items()}

    def rates_at(self, iteration: int, total: int) -> dict[str, float]:
        """The learning rates of iteration 0, 1, ... of a run of ``total`` iterations, by the names of :attr:`rates`."""
        rules = {name: (group.optimizer, iteration + ahead) for name, (group, ahead) in self.rates.items()}
        return {name: rule.schedule(rule.lr, at, total) for name, (rule, at) in rules.items()}

    def descend(self, state: TrainState, name: str, loss: Callable[[Params], Tensor]) -> TrainState:
        """One step of a group's optimizer down the mean of a loss.

        Args:
            state: Where the step starts.
            name: The group, one of :meth:`param_groups`.
            loss: A function of its network's parameters, with values (B,) or a number.

        Raises:
            ConfigError: For a loss of another shape, whose mean would train wrongly.
        """

        def mean(params: Params) -> Tensor:
            value = loss(params)
            if value.dim() > 1:
                raise ConfigError(
                    f"The loss of {type(self).__name__} has shape {tuple(value.shape)}: return one number for each "
                    "example, shape (B,), or one number in all."
                )
            return value.mean()

        grads, value = grad_and_value(mean)(state.params[self.groups[name].network])
        return self.update(state, name, value, grads)

    def update(
        self,
        state: TrainState,
        name: str,
        loss: Tensor,
        grads: Params,
        diagnostics: Params | None = None,
        buffers: Params | None = None,
    ) -> TrainState:
        """One step of a group's optimizer along a gradient: average over processes, clip, update, record.

        Args:
            state: Where the step starts.
            name: The group.
            loss: A number for the record: a mean over this process' rows, as ``grads`` and ``diagnostics`` are.
            grads: The gradient, by the names of the parameters that move.
            diagnostics: Further numbers for the record.
            buffers: New values of persistent buffers, the same in all processes.
        """
        group = self.groups[name]
        diagnostics = diagnostics or {}
        if state.minibatch is not WHOLE:
            keyed = {("grad", key): g for key, g in grads.items()}
            means = state.minibatch.mean_of({**keyed, "loss": loss, **diagnostics})
            loss = means["loss"]
            grads = {key: means["grad", key] for key in grads}
            diagnostics = {key: means[key] for key in diagnostics}
        rule = group.optimizer
        params = state.params[group.network]
        step = rule.update_ if state.in_place else rule.update
        clipped = grads if rule.clip_norm is None else clip(grads, rule.clip_norm)
        own = params if len(grads) == len(params) else group.of(params)
        moved, optimizer = step(own, clipped, state.optimizers[name], state.lrs[name])
        return state._replace(
            params={**state.params, group.network: {**params, **moved}},
            optimizers={**state.optimizers, name: optimizer},
            buffers={**state.buffers, **(buffers or {})},
            steps={**state.steps, name: Step(loss, grads, diagnostics)},
        )

    def live_state(self) -> TrainState:
        """The live parameters and buffers, as a state without optimizers: where losses are validated."""
        params = {name: params_of(network) for name, network in self.networks().items()}
        return TrainState(params, {}, {}, self.persistent_buffers())

    def train_state(self, optimizers: Mapping[str, StatefulOptimizer], lrs: Mapping[str, Tensor]) -> TrainState:
        """Where the next iteration starts; the tensors are the live ones."""
        states = {name: optimizer.functional_state() for name, optimizer in optimizers.items()}
        return self.live_state()._replace(optimizers=states, lrs=dict(lrs))

    def run_iteration(self, state: TrainState, v: Tensor, noise: Any) -> dict[str, Tensor]:
        """Run one iteration, write its result into the tensors of ``state``, and return its record."""
        # A compiler makes one kernel of a pure step and its copies; eager steps overwrite the live tensors themselves.
        pure = torch.compiler.is_compiling()
        after = self.iteration(state._replace(in_place=not pure), v, noise)
        with torch.no_grad():
            if pure:
                copy_tree(state.params, after.params)
                copy_tree(state.optimizers, after.optimizers)
            if state.buffers:
                copy_tree(state.buffers, after.buffers)
        return after.record()

    def step(self, state: TrainState, minibatch: Minibatch, v: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw the noise of one iteration, and run it, compiled or by plain autograd."""
        noise = minibatch.draw(self.draw_noise, v, generator)
        if self.compiled is not None and minibatch is WHOLE:
            return self.compiled(state, v, noise)
        run = self.compiled or self.run_iteration
        with ExitStack() as contexts:
            if self.compiled is None:
                contexts.enter_context(plain_autograd())
            if minibatch is not WHOLE:
                contexts.enter_context(statistics_over(self, minibatch))
                state = state._replace(minibatch=minibatch)
            return run(state, v, noise)

    # ------------------------------------------------------------------ Lightning's side

    dtype: torch.dtype  # Lightning's annotation allows a string, too

    @property
    def _data(self) -> Any:
        """The data module, which Lightning's trainer has and does not declare."""
        return cast(Any, self.trainer).datamodule

    @property
    def iterations_done(self) -> int:
        """The number of iterations so far."""
        return self.trainer.global_step

    @property
    def current_state(self) -> TrainState | None:
        """The live state, with those of the optimizers; None before training starts, and after loading."""
        return self.__dict__.get("_state")

    @property
    def diagnostics(self) -> dict[str, Tensor]:
        """Losses and gradient norms of the last iteration, by name."""
        return next(reversed(self.records.values()), {})

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        """One optimizer a group, in the order of the groups."""
        networks = self.networks()

        def moved(group: ParamGroup) -> dict[str, nn.Parameter]:
            return group.of({name: p for name, p in networks[group.network].named_parameters() if p.requires_grad})

        return [*(StatefulOptimizer(moved(group), group.optimizer) for group in self.groups.values())]

    def setup(self, stage: str) -> None:
        """Make room for the training examples."""
        if stage == "fit" and self.per_example:
            self.keep_examples(len(self._data.splits.train))

    def on_fit_start(self) -> None:
        """Make what every iteration needs.

        Raises:
            ConfigError: For a trainer without max_steps.
        """
        if self.trainer.max_steps < 1:
            raise ConfigError("Minibatches have no end here: give the Trainer max_steps, the number of iterations.")
        self.compiled = None
        self._generator = torch.Generator(self.device)
        # The same in all processes, each of which keeps its rows of the whole minibatch's noise.
        self._noise_seed = derive_seed(self.seed, "noise", 0)
        self._lrs = {name: torch.zeros((), device=self.device) for name in self.rates}

    def on_train_start(self) -> None:
        """Look up the live tensors: every iteration starts from them."""
        found = self.optimizers()
        wrapped = found if isinstance(found, list) else [found]
        raw = [cast(StatefulOptimizer, optimizer.optimizer) for optimizer in wrapped]
        self._raw = dict(zip(self.groups, raw, strict=True))
        self._counted = wrapped[-1]
        self._state = self.train_state(self._raw, self._lrs)

    def training_step(self, batches: Tensor | list[Tensor], batch_idx: int) -> None:
        """One iteration for each minibatch: Lightning's loop around this costs more than a small iteration."""
        self.records = {}
        for v in [batches] if isinstance(batches, Tensor) else batches:
            iteration = self.trainer.global_step
            state = self._state
            self._set_rates(iteration)
            # Consecutive seeds: two iterations of one run never draw the same noise.
            generator = self._generator.manual_seed((self._noise_seed + iteration) % 2**32)
            minibatch = WHOLE if self.trainer.world_size == 1 else minibatch_of(v, self._data.rows_at(iteration))
            if self.per_example:
                state = state._replace(indices=self._data.indices_at(iteration).to(self.device))
            # the one step that Lightning sees and counts
            self.records[iteration + 1] = self._counted.step(closure=partial(self.step, state, minibatch, v, generator))
            if self.stopping:
                return

    def _set_rates(self, iteration: int) -> None:
        """The learning rates of an iteration, also where Lightning's callbacks look for them."""
        for name, lr in self.rates_at(iteration, self.trainer.max_steps).items():
            self._lrs[name].fill_(lr)
            if name in self._raw:
                self._raw[name].param_groups[0]["lr"] = lr

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Set Lightning's counts of batches to those of this run's blocks of iterations."""
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        done = checkpoint["eblvm_lit"]["iteration"] // self._data.iterations_per_batch
        for counts in (progress["total"], progress["current"]):
            later = counts["ready"] - done
            counts.update({name: counts[name] - later for name in ("ready", "started", "processed", "completed")})

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add version, method, iteration and configuration: plain containers, which load as data."""
        own = {"version": __version__, "method": torch.typename(type(self)), "iteration": self.iterations_done}
        checkpoint["eblvm_lit"] = own | {"config": self.description}

    def on_validation_epoch_start(self) -> None:
        """Begin the sum of the losses and the count of the examples."""
        self._validated = torch.zeros(2, dtype=torch.float64)

    def validation_step(self, v: Tensor, batch_idx: int) -> None:
        """Add the losses of some examples, with noise that is the same at every validation."""
        if len(v) == 0:  # processes are dealt whole batches, one of them perhaps none
            return
        rank, size = rank_and_size()
        generator = keyed_generator(self.seed, "validation", rank + size * batch_idx, device=v.device)
        with plain_autograd():  # as an eager iteration: with it activations may be recomputed instead of kept
            loss = self.validation_loss(v, generator).detach()
        self._validated += torch.tensor([loss.mean().item() * len(v), len(v)], dtype=torch.float64)

    def on_validation_epoch_end(self) -> None:
        """Give callbacks ``val/loss``, the mean over the examples of all processes.

        Lightning's ``self.log`` rounds float64 to float32, and by ``sync_dist`` floors the examples a process: of 3 in
        two processes it takes 1.5 times the mean.
        """
        total, n = sum_over_ranks(self._validated)
        self.trainer.callback_metrics["val/loss"] = total / n
