"""The LightningModule that all methods share, and the state that one iteration maps to the next."""

from __future__ import annotations

import inspect
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, TypeVar, cast

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from eblvm_lit import __version__
from eblvm_lit.core.compile_choice import Measurement, compiles
from eblvm_lit.core.fast_paths import CompilationError, compile_step, without_hooks
from eblvm_lit.core.functional import Params, grad_and_value, params_of, plain_autograd
from eblvm_lit.core.minibatch import WHOLE, Minibatch
from eblvm_lit.core.ranks import first_reason, gather_objects, rank_and_size
from eblvm_lit.core.seeding import derive_seed, keyed_generator
from eblvm_lit.core.shards import minibatch_of, shard_of
from eblvm_lit.core.tensors import clip, copy_tree, norm
from eblvm_lit.divergences.base import Divergence
from eblvm_lit.energies.base import Energy
from eblvm_lit.energies.latent_prior import LatentPriorEnergy
from eblvm_lit.errors import ConfigError, DataError
from eblvm_lit.methods.checks import (
    check_optimizer,
    refuse_constant_losses,
    refuse_shapes,
    refuse_unmoved,
    unfit_loss,
)
from eblvm_lit.networks.layers import local_batch_norms, statistics_over
from eblvm_lit.objectives.base import Objective
from eblvm_lit.optimizers.base import Optimizer, State
from eblvm_lit.posteriors.base import Posterior
from eblvm_lit.utils.memory import lacks_memory, out_of_memory

__all__ = ["Method", "MethodParts", "ParamGroup", "StatefulOptimizer", "Step", "TrainState"]


Value = TypeVar("Value", bound=Tensor)


@dataclass(frozen=True)
class ParamGroup:
    """Parameters that one optimizer moves.

    Attributes:
        network: Whose they are: ``theta``, ``phi``, ...
        optimizer: The update rule.
        prefix: What their names begin with; all of the network's if empty.

    Raises:
        ConfigError: For an optimizer of torch.

    Example:
        >>> from eblvm_lit.optimizers.sgd import SGD
        >>> encoder = ParamGroup("omega", SGD(lr=0.1), prefix="encoder.")
        >>> list(encoder.of({"encoder.weight": torch.zeros(1), "generator.weight": torch.zeros(1)}))
        ['encoder.weight']
    """

    network: str
    optimizer: Optimizer
    prefix: str = ""

    def __post_init__(self) -> None:
        check_optimizer(self.optimizer)

    def of(self, params: dict[str, Value]) -> dict[str, Value]:
        """Those of a network's parameters that belong to the group."""
        if not self.prefix:
            return params
        return {name: p for name, p in params.items() if name.startswith(self.prefix)}


class Step(NamedTuple):
    """What a step descended, for the record: means over the whole minibatch.

    Attributes:
        loss: A number.
        grads: The gradient, before clipping.
        diagnostics: Further numbers by name.
    """

    loss: Tensor
    grads: Params
    diagnostics: dict[str, Tensor]


class TrainState(NamedTuple):
    """All that an iteration starts from. An iteration is a function of it, of the minibatch and of the noise.

    Attributes:
        params: Parameters of each network, by ``theta``, ``phi``, ...
        optimizers: State of each group's optimizer, by the group's name.
        lrs: Learning rate of each group.
        buffers: What else lasts from one iteration to the next: persistent chains, running statistics.
        minibatch: Means and rows of the whole minibatch, of which this process may hold a shard.
        indices: The numbers of the whole minibatch's examples in the training split, int64, for methods with buffers
            :attr:`Method.per_example`; None: the first ones.
        in_place: Whether steps may overwrite the tensors of this state, which is faster outside of a compiler.
        steps: The last step of each group in this iteration.
    """

    params: dict[str, Params]
    optimizers: dict[str, State]
    lrs: dict[str, Tensor]
    buffers: dict[str, Tensor] = {}  # noqa: RUF012 - nothing of a state is changed but by its owner
    minibatch: Minibatch = WHOLE
    indices: Tensor | None = None
    in_place: bool = False
    steps: dict[str, Step] = {}  # noqa: RUF012

    @property
    def theta(self) -> Params:
        """The model's parameters."""
        return self.params["theta"]

    @property
    def phi(self) -> Params:
        """The posterior's parameters."""
        return self.params["phi"]

    def record(self) -> dict[str, Tensor]:
        """Loss, gradient norm (before clipping) and diagnostics of each group's last step, as ``<group>_<number>``."""
        found: dict[str, Tensor] = {}
        for name, last in self.steps.items():
            found[f"{name}_loss"], found[f"{name}_grad_norm"] = last.loss, norm(last.grads)
            for key, value in last.diagnostics.items():
                found[f"{name}_{key}"] = value
        return found

    def at(self, **params: Params) -> TrainState:
        """The state with other parameters of some networks."""
        return self._replace(params={**self.params, **params})


class StatefulOptimizer(torch.optim.Optimizer):
    """Holds the state of a functional optimizer where Lightning saves, restores and moves it.

    The update itself happens in the closure given to :meth:`step`, which runs a whole iteration: all levels, as one
    function. Lightning counts the steps of the one optimizer whose ``step`` is called.

    Args:
        params: The parameters it moves, by name.
        rule: The functional optimizer.

    Example:
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> optimizer = StatefulOptimizer({"x": nn.Parameter(torch.zeros(2))}, Adam(lr=0.1))
        >>> sorted(optimizer.functional_state())
        ['exp_avg', 'exp_avg_sq', 'step']
    """

    def __init__(self, params: Mapping[str, nn.Parameter], rule: Optimizer) -> None:
        super().__init__(list(params.values()), {"lr": rule.lr})
        self.names, self.rule = list(params), rule
        state = rule.init({name: p.detach() for name, p in params.items()})
        for name, p in params.items():
            self.state[p] = {slot: state[slot][name] for slot in rule.slots}
        self._first()["step"] = state["step"]

    def _first(self) -> dict[str, Any]:
        """The entry that also holds the number of steps, which is the same for all parameters."""
        return self.state[self.param_groups[0]["params"][0]]

    def functional_state(self) -> State:
        """The state as the rule takes it; the tensors are the ones held here."""
        entries = [self.state[p] for p in self.param_groups[0]["params"]]
        slots = {
            slot: {name: entry[slot] for name, entry in zip(self.names, entries, strict=True)}
            for slot in self.rule.slots
        }
        return {"step": self._first()["step"], **slots}

    @without_hooks
    def step(self, closure: Callable[[], Any]) -> Any:
        """Run the iteration."""
        return closure()


log = logging.getLogger(__name__)


class MethodParts(NamedTuple):
    """What a method trains, and what it trains by: what metrics, figures and samplers ask for.

    Attributes:
        energy: E(v, h) or F(v); None for a method without an energy, as the VAE.
        posterior: q(h|v), or BiDVL's encoder.
        generator: A module that maps h (B, H) to v (B, *event).
        objective: The functional of the score that is minimised.
        divergence: What fits the posterior.
        log_z: A learned estimate of the energy's log Z, a number.
        encoder: A module that maps v (B, *event) to h (B, H) where there is no posterior, as Langevin chains do.
    """

    energy: Energy | None = None
    posterior: Posterior | None = None
    generator: nn.Module | None = None
    objective: Objective | None = None
    divergence: Divergence | None = None
    log_z: Tensor | None = None
    encoder: nn.Module | None = None

    @property
    def decoding(self) -> nn.Module | None:
        """What maps h (B, H) to v (B, *event): the generator, or that of an energy with a prior of latents."""
        energy = self.energy
        return cast(nn.Module, energy.generator) if isinstance(energy, LatentPriorEnergy) else self.generator

    @property
    def encoding(self) -> Any:
        """What maps v (B, *event) to h (B, H): the posterior, whose mean it gives, or the encoder; None without."""
        return self.posterior if self.posterior is not None else self.encoder


class Method(pl.LightningModule, ABC):
    """The base of all methods. A subclass writes its algorithm as :meth:`iteration`, in the paper's order and letters.

    One iteration is one minibatch, whatever K and N are: Lightning's ``global_step`` counts iterations, because only
    the last group's optimizer is stepped through Lightning. Several processes share each minibatch and compute what one
    process would, up to rounding: see :mod:`eblvm_lit.core.shards`.

    Args:
        seed: All noise is a function of the seed and the iteration, so that a resumed run repeats the first one's.
        compile: Whether the iteration is compiled; ``auto`` measures a few eager ones, and compiles where that pays.

    Attributes:
        records: Losses and gradient norms of each iteration of the last call of Lightning's loop.
        compiled_in: The iteration that compiled, which took longer; 0 if none did.
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

    def __init__(self, *, seed: int = 0, compile: bool | Literal["auto"] = "auto") -> None:
        super().__init__()
        if compile not in (True, False, "auto"):
            raise ConfigError(f"method.compile is auto, true or false, not {compile!r}.")
        self.automatic_optimization = False
        self.seed = seed
        self.compile_mode: bool | Literal["auto"] = compile
        self.records: dict[int, dict[str, Tensor]] = {}
        self.compiled_in = 0
        self.stopping = False
        self.description: dict[str, Any] = {}
        self._compiled: Callable[..., dict[str, Tensor]] | None = None
        self._to_compile = False  # with the next full minibatch
        self._full_batch: int | None = None  # the batch size that is compiled for
        self._measured: Measurement | None = None  # what compile=auto chooses by
        self._compile_kept: dict[str, Any] | None = None  # what it chose before this run was interrupted
        self._is_first = False  # whether the next iteration is the first of this run

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
        """The method in words with its main numbers, for the first screen of a run."""
        return type(self).__name__

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one v."""
        return cast(Energy, self.parts.energy).event_shape  # a method without an energy says it itself

    def persistent_buffers(self) -> dict[str, Tensor]:
        """Buffers, other than parameters, that an iteration moves and a checkpoint keeps, by name."""
        return {}

    def keep_examples(self, n: int) -> None:
        """Make room for n training examples in the buffers :attr:`per_example`, unless there is that already."""

    def inner_steps(self) -> int:
        """Gradient evaluations in one iteration, unrolled ones included."""
        return 1

    def check_batch_size(self, n: int) -> None:
        """Refuse batches of n examples; asked before the first iteration, of every size that will come.

        Raises:
            ConfigError: If the method cannot use them.
        """

    def failure_hint(self, quantity: str) -> str | None:
        """What the user can do where a quantity of :attr:`diagnostics`, named without its group, is not finite."""
        return None

    def float32_reason(self) -> str | None:
        """Why ``trainer.precision=auto`` keeps this method in float32; None where the faster dtype is taken."""
        return None

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

    def descend(self, state: TrainState, name: str, loss: Callable[[Params], Tensor]) -> TrainState:
        """One step of a group's optimizer down the mean of a loss.

        Args:
            state: Where the step starts.
            name: The group, one of :meth:`param_groups`.
            loss: A function of its network's parameters, with values (B,) or a number.
        """

        def mean(params: Params) -> Tensor:
            value = loss(params)
            if not isinstance(value, Tensor) or value.dim() > 1:
                raise unfit_loss(self, value)
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
        group, diagnostics = self.groups[name], diagnostics or {}
        if state.minibatch is not WHOLE:
            keyed = {("grad", key): g for key, g in grads.items()}
            means = state.minibatch.mean_of({**keyed, "loss": loss, **diagnostics})
            loss, grads = means["loss"], {key: means["grad", key] for key in grads}
            diagnostics = {key: means[key] for key in diagnostics}
        rule, params = group.optimizer, state.params[group.network]
        step, clipped = rule.update_ if state.in_place else rule.update, grads
        if rule.clip_norm is not None:
            clipped = clip(grads, rule.clip_norm)
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
        """Make room for the training examples; a checkpoint that is resumed has its own number of them.

        Raises:
            DataError: If they are not as many as this run's.
        """
        if stage != "fit" or not self.per_example:
            return
        n = len(self._data.splits.train)
        for name in self.per_example:
            kept = len(self.get_buffer(name))
            if kept not in (0, n):
                raise DataError(
                    f"The checkpoint holds {name} of {kept:,} training examples, and the data have {n:,}: resume with "
                    "the data that the run began with."
                )
        self.keep_examples(n)

    def on_fit_start(self) -> None:
        """Check what the run will need.

        Raises:
            ConfigError: For a trainer without max_steps, and what the method cannot use.
        """
        if self.trainer.max_steps < 1:
            raise ConfigError("Minibatches have no end here: give the Trainer max_steps, the number of iterations.")
        data = self._data
        self._n_processes = rank_and_size()[1]
        self._compiled, self._is_first = None, True
        self._full_batch = min(data.batch_size, len(data.splits.train))
        for n in data.batch_sizes():
            self.check_batch_size(n)
        for n in data.train_batch_sizes():
            shard_of(n)
        self._check_networks()
        refuse_unmoved(self)
        if self.parts.energy is not None:
            refuse_shapes(self, self.parts.energy, data.as_float(data.splits.train[:1]))
        self._generator = torch.Generator(self.device)
        # The same in all processes, each of which keeps its rows of the whole minibatch's noise.
        self._noise_seed = derive_seed(self.seed, "noise", 0)
        self._lrs = {name: torch.zeros((), device=self.device) for name in self.rates}

    def _check_networks(self) -> None:
        """Refuse rates that overflow, and statistics of one process where there are several."""
        largest = torch.finfo(torch.get_default_dtype()).max
        for name, group in self.groups.items():
            if group.optimizer.lr > largest:
                raise ConfigError(f"The {name} level's lr must be at most {largest:.4g}, not {group.optimizer.lr}.")
        if self._n_processes > 1:
            for name, part in local_batch_norms(self).items():
                raise ConfigError(
                    f"{name} is torch's {type(part).__name__}, whose statistics would be those of one device: use "
                    "eblvm_lit.networks.layers.BatchNorm2d, or trainer.devices=1."
                )

    def on_train_start(self) -> None:
        """Look up the live tensors: every iteration starts from them."""
        wrapped = self.optimizers()
        wrapped = wrapped if isinstance(wrapped, list) else [wrapped]
        raw = [cast(StatefulOptimizer, optimizer.optimizer) for optimizer in wrapped]
        self._raw = dict(zip(self.groups, raw, strict=True))
        self._counted = wrapped[-1]
        self._state = self.train_state(self._raw, self._lrs)
        self._begin_compiling()

    def _begin_compiling(self) -> None:
        """Compile, measure first, or neither."""
        compiled, sentence = compiles(self.compile_mode, self.device)
        if self.compile_mode == "auto":
            missing = first_reason(sentence if compiled is False else None)  # of one machine among several
            measured = Measurement.of(self._compile_kept, self.iterations_done, self.trainer.max_steps)
            self._measured = measured if missing is None else None
            compiled = measured.compiled if missing is None else False
            if missing is not None:
                log.info("%s", missing)
            elif compiled is not None:
                how = "compiling" if compiled else "running eagerly"
                log.info("compile=auto: %s, as the run did before it was interrupted.", how)
        if compiled:
            self.compile_iteration()

    def _choose_compiling(self, measured: Measurement) -> None:
        """Compile from here on, or do not, by what the first process has measured."""
        n_tensors = sum(1 for network in self.networks().values() for _ in network.parameters())
        choice = gather_objects(measured.choose(self.inner_steps() * n_tensors))[0]
        measured.compiled = choice.compiled
        log.info("%s", choice.sentence)
        if choice.compiled:
            self.compile_iteration()

    def on_train_batch_start(self, batches: Tensor | list[Tensor], batch_idx: int) -> None:
        """Compute the learning rates of the iterations of this call."""
        first, total = self.iterations_done, self.trainer.max_steps
        n = 1 if isinstance(batches, Tensor) else len(batches)
        rules = [(group.optimizer, ahead) for group, ahead in self.rates.values()]
        self._rates = [
            [rule.schedule(rule.lr, i + ahead, total) for rule, ahead in rules] for i in range(first, first + n)
        ]

    def training_step(self, batches: Tensor | list[Tensor], batch_idx: int) -> None:
        """One iteration for each minibatch: Lightning's loop around this costs more than a small iteration."""
        self.records = {}
        for v, rates in zip([batches] if isinstance(batches, Tensor) else batches, self._rates, strict=True):
            iteration = self.trainer.global_step
            for name, lr in zip(self._lrs, rates, strict=True):
                self._lrs[name].fill_(lr)
            for raw, lr in zip(self._raw.values(), rates, strict=False):  # the groups' own rates come first
                raw.param_groups[0]["lr"] = lr
            # Consecutive seeds: two iterations of one run never draw the same noise.
            generator = self._generator.manual_seed((self._noise_seed + iteration) % 2**32)
            minibatch = WHOLE
            if self._n_processes > 1:
                minibatch = minibatch_of(v, self._data.rows_at(iteration))
            measured = self._measured
            if measured is not None and measured.compiled is None and iteration == measured.at:
                self._choose_compiling(measured)
            state = self._state
            if self.per_example:
                state = state._replace(indices=self._data.indices_at(iteration).to(self.device))
            step = partial(self.step, state, minibatch, v, generator)
            began, to_compile = time.perf_counter(), self._to_compile
            try:  # the one step that Lightning sees and counts
                self.records[iteration + 1] = self._counted.step(closure=step)
            except (RuntimeError, MemoryError) as error:
                if not lacks_memory(error):
                    raise
                raise out_of_memory(error, f"in iteration {iteration + 1}", self.memory_hints()) from error
            if self._is_first:
                self._is_first, given = False, state._replace(minibatch=minibatch)
                refuse_constant_losses(self, given, v, generator, self.records[iteration + 1])
            if to_compile and not self._to_compile:
                self.compiled_in = iteration + 1
            if measured is not None and measured.compiled is None:
                if self.device.type == "cuda":
                    torch.cuda.synchronize(self.device)
                measured.seconds.append(time.perf_counter() - began)
            if self.stopping:
                return

    # Lightning asks for the signature in every call; this is where ``inspect`` looks first.
    training_step.__signature__ = inspect.signature(training_step)

    def step(self, state: TrainState, minibatch: Minibatch, v: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw the noise of one iteration, and run it, compiled or not."""
        draw, whole = self.draw_noise, minibatch is WHOLE
        noise = draw(v, generator) if whole else minibatch.draw(draw, v, generator)
        if not whole:
            state = state._replace(minibatch=minibatch)
        with nullcontext() if whole else statistics_over(self, minibatch):
            # A short last batch is not worth a compilation.
            if self._compiled is not None and minibatch.size(v) == self._full_batch:
                self._to_compile = False
                try:
                    return self._compiled(state, v, noise)
                except CompilationError as error:  # raised before anything was run
                    self._give_up_compiling(error)
            with plain_autograd():
                return self.run_iteration(state, v, noise)

    def compile_iteration(self) -> None:
        """Compile the iteration with the next full minibatch, in all processes or in none."""
        if rank_and_size()[1] > 1:
            self._compiled = compile_step(self.run_iteration, self.device, first_reason)
        else:
            self._compiled = compile_step(self.run_iteration, self.device)
        self._to_compile = True

    def _give_up_compiling(self, error: CompilationError) -> None:
        if self.compile_mode is True:
            raise ConfigError(f"method.compile=true, but {error}: use method.compile=auto or false.") from error
        log.warning("compile=auto: running eagerly, because %s.", error)
        self._compiled = None
        if self._measured is not None:
            self._measured.compiled = False

    @classmethod
    def load_from_checkpoint(
        cls, checkpoint_path: str | Path, map_location: Any = None, *, strict: bool | None = None, **options: Any
    ) -> Self:
        """The trained method of a checkpoint or of the folder of a run, as Lightning's users know it.

        :func:`eblvm_lit.load` gives it with its configuration, metrics and data.

        Args:
            checkpoint_path: The file, or the folder of the run.
            map_location: The device; the CPU if not given.
            strict: As in Lightning; checkpoints are always loaded whole.
            options: Of :func:`eblvm_lit.load`.

        Raises:
            DataError: If there is no checkpoint, or it cannot be read.
            ConfigError: If it is of another method, or for ``strict=False``.
        """
        if strict is False:
            raise ConfigError("Checkpoints are always loaded whole: leave out strict=False.")
        from eblvm_lit.cli.trained_run import load  # the runtime stands on methods

        method = load(checkpoint_path, device=map_location or "cpu", **options).method
        if not isinstance(method, cls):
            raise ConfigError(f"{checkpoint_path} is of {type(method).__name__}, not of {cls.__name__}.")
        return method

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Set Lightning's counts of batches to those of this run's blocks of iterations."""
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        done = checkpoint["eblvm_lit"]["iteration"] // self._data.iterations_per_batch
        for counts in (progress["total"], progress["current"]):
            later = counts["ready"] - done
            counts.update({name: counts[name] - later for name in ("ready", "started", "processed", "completed")})
        self._compile_kept = checkpoint["eblvm_lit"].get("compile")

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add version, method, iteration and configuration: plain containers, which load as data."""
        own = {"version": __version__, "method": torch.typename(type(self)), "iteration": self.iterations_done}
        own["config"] = self.description
        if self._measured is not None:
            own["compile"] = self._measured.kept()
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
        except (RuntimeError, MemoryError) as error:
            if not lacks_memory(error):
                raise
            raise out_of_memory(error, "in a validation", ["lower data.eval_batch_size"]) from error
        # Lightning's loggers are left out: they would be told of an iteration one too early.
        self.log("val/loss", loss.mean(), batch_size=len(v), logger=False, sync_dist=size > 1)
