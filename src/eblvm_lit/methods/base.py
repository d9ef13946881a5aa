"""The LightningModule that is the base of all methods."""

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
from eblvm_lit.energies.binary_layers import BinaryEnergy
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.parts import MethodParts
from eblvm_lit.methods.state import ParamGroup, Step, TrainState
from eblvm_lit.networks.layers import statistics_over
from eblvm_lit.optimizers.stateful import StatefulOptimizer
from eblvm_lit.utils.quantities import Declares, Quantity

__all__ = ["PRIOR_STATISTICS", "Method"]

ROWS = 10_000  # the number of training examples that are converted to floats at a time
PRIOR_STATISTICS = "prior_statistics"  # the key of the generator's batch-normalisation statistics in checkpoints


class Method(
    Declares,
    pl.LightningModule,
    ABC,
    emits={
        "loss": Quantity(-1, "", "the validation loss of the method, which chooses the best checkpoint by default"),
        "train/*_loss": Quantity(-1, "", "the loss of a level on its minibatch"),
        "train/*_grad_norm": Quantity(0, "", "the norm of a level's gradient, before clipping"),
    },
):
    """The base class of all training methods.

    A subclass writes its paper's algorithm as :meth:`iteration`, with the paper's order of steps and symbols.

    One iteration processes one minibatch, whatever K and N are. Lightning's ``global_step`` counts iterations, because
    only the optimizer of the last group is stepped through Lightning. If several processes share a minibatch, together
    they compute what one process would compute, up to rounding: see :mod:`eblvm_lit.core.shards`.

    Args:
        seed: The seed of all random numbers. The noise of an iteration is a function of the seed and the iteration's
            number, so that a resumed run draws the same noise as an uninterrupted one.
        compile: Whether the callback :class:`~eblvm_lit.training.callbacks.compiling.Compiling` compiles the iteration.

    Attributes:
        records: The losses, gradient norms and diagnostics of each iteration in the last call of :meth:`training_step`,
            by the iteration's number.
        compiled: The compiled function that runs an iteration in place of :meth:`run_iteration`; None if the iteration
            is not compiled.
        per_example: The names of the persistent buffers that have one entry for each training example.
        fixed: The names of the networks that are deliberately not trained by any group.
        stopping: Whether :meth:`training_step` returns after the iteration in progress; callbacks set it.
        description: The run's configuration as plain containers, which checkpoints contain.

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

    # ------------------------------------------------------------------ what subclasses define

    @property
    @abstractmethod
    def parts(self) -> MethodParts:
        """Return the method's energy, posterior and other components. A component that the method lacks is None."""

    @abstractmethod
    def networks(self) -> dict[str, nn.Module]:
        """Return a dict of the networks, with names such as ``theta`` (the model) and ``phi`` (the posterior)."""

    @abstractmethod
    def param_groups(self) -> dict[str, ParamGroup]:
        """Return a dict with one parameter group for each optimizer; the keys are names of optimizer steps in the log.

        Most methods have the key ``model``, or the keys ``lower`` and ``upper`` if they have two levels.
        """

    @abstractmethod
    def draw_noise(self, v: Tensor, generator: torch.Generator) -> Any:
        """Draw all random numbers of one iteration on the minibatch v (B, *event)."""

    @abstractmethod
    def iteration(self, state: TrainState, v: Tensor, noise: Any) -> TrainState:
        """Run one iteration of the paper's algorithm, as a pure function of the state, the minibatch and the noise."""

    @abstractmethod
    def validation_loss(self, v: Tensor, generator: torch.Generator) -> Tensor:
        """Compute the validation loss of each example, shape (B,). The best checkpoint has the lowest mean loss."""

    @property
    def title(self) -> str:
        """Return a readable name of the method with its main settings, for the first line that a run prints."""
        return type(self).__name__

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Return the shape of one example v."""
        return cast(Energy, self.parts.energy).event_shape  # a method without an energy overrides this property

    def persistent_buffers(self) -> dict[str, Tensor]:
        """Return a dict of the buffers that iterations update and that checkpoints contain."""
        return {}

    def unshared_buffers(self) -> set[str]:
        """Return the names of the buffers that only training needs. A published model does not contain them."""
        return set()

    def load_prior_statistics(self, values: Params) -> None:
        """Load the generator's batch-normalisation statistics for sampling, which were stored with its parameters.

        A method without such a generator ignores the values.
        """

    def keep_examples(self, n: int) -> None:
        """Resize the buffers in :attr:`per_example` to n training examples, unless they already have this size."""

    def check_batch_size(self, n: int) -> None:
        """Raise a ConfigError if the method cannot use batches of n examples.

        This method is called before the first iteration, with every batch size that the run will have.

        Raises:
            ConfigError: If the method, or its objective, is not defined for n examples.
        """
        if self.parts.objective is not None:
            self.parts.objective.check_batch_size(n)

    def check_processes(self, size: int) -> None:
        """Raise a ConfigError if the method cannot be trained by ``size`` processes.

        This method is called before the first iteration.

        Raises:
            ConfigError: If something other than the minibatch, such as the persistent chains, cannot be divided
                among the processes.
        """

    def check_shared_batch(self, n: int, size: int) -> None:
        """Raise a ConfigError if ``size`` processes cannot share a training minibatch of n examples."""

    def failure_hint(self, quantity: str) -> str | None:
        """Return advice if a quantity in :attr:`diagnostics` is not finite, or None if there is no advice.

        ``quantity`` is the name of the quantity, without the name of its parameter group in front.
        """
        return None

    def float32_reason(self) -> str | None:
        """Return the reason why ``trainer.precision=auto`` must choose float32, or None if it may choose bfloat16."""
        return None if self.parts.objective is None else self.parts.objective.float32_reason()

    def memory_hints(self) -> list[str]:
        """Return advice on how to reduce the memory of an iteration, ordered from most to least effective."""
        return ["lower data.batch_size"]

    # ------------------------------------------------------------------ the steps of an iteration

    @cached_property
    def groups(self) -> dict[str, ParamGroup]:
        """Return the parameter groups: the cached result of one call of :meth:`param_groups`."""
        return self.param_groups()

    @cached_property
    def rates(self) -> dict[str, tuple[ParamGroup, int]]:
        """Return a dict with one entry for each learning rate that an iteration uses.

        An entry consists of a parameter group, and of the number of iterations by which the learning rate is ahead of
        the group's schedule.
        """
        return {name: (group, 0) for name, group in self.groups.items()}

    def rates_at(self, iteration: int, total: int) -> dict[str, float]:
        """Compute a dict of the learning rates at an iteration (counted from 0) of a run of ``total`` iterations."""
        rules = {name: (group.optimizer, iteration + ahead) for name, (group, ahead) in self.rates.items()}
        return {name: rule.schedule(rule.lr, at, total) for name, (rule, at) in rules.items()}

    def descend(self, state: TrainState, name: str, loss: Callable[[Params], Tensor]) -> TrainState:
        """Take one optimizer step on a parameter group to decrease the mean of a loss.

        Args:
            state: The state before the step.
            name: The name of the group, one of :meth:`param_groups`.
            loss: A function of the parameters of the group's network that returns the loss of each example, shape
                (B,), or a scalar.

        Raises:
            ConfigError: If the loss has another shape, for which the mean would be a wrong loss.
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
        """Take one optimizer step on a parameter group with the given gradient.

        The gradient is averaged over processes and clipped, the parameters are updated, and the loss, the gradient and
        the diagnostics are recorded.

        Args:
            state: The state before the step.
            name: The name of the group.
            loss: The loss to record, a scalar. Like ``grads`` and ``diagnostics``, it is a mean over this process'
                examples.
            grads: The gradient, by the names of the parameters that the step changes.
            diagnostics: Further scalars to record, by name.
            buffers: New values of persistent buffers, by name; they must be the same in all processes.
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
        """Return the current parameters and buffers, without optimizer states, for computing the validation loss."""
        params = {name: params_of(network) for name, network in self.networks().items()}
        return TrainState(params, {}, {}, self.persistent_buffers())

    def train_state(self, optimizers: Mapping[str, StatefulOptimizer], lrs: Mapping[str, Tensor]) -> TrainState:
        """Return the training state before the next iteration. It contains the modules' own tensors and not copies."""
        states = {name: optimizer.functional_state() for name, optimizer in optimizers.items()}
        return self.live_state()._replace(optimizers=states, lrs=dict(lrs))

    def run_iteration(self, state: TrainState, v: Tensor, noise: Any) -> dict[str, Tensor]:
        """Run one iteration, write its results into the tensors of ``state``, and return the values to log."""
        # A compiled optimizer step is a pure function, and its results are copied into the state afterwards. The
        # compiler fuses the step and the copy into one kernel. An eager step overwrites the tensors of the state in
        # place, so that no copy is needed.
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
        """Draw the noise of one iteration and run the iteration, either compiled or eagerly with ``torch.autograd``."""
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

    # ------------------------------------------------------------------ Lightning's interface

    dtype: torch.dtype  # this annotation is narrower than Lightning's, which also allows a string

    @property
    def _data(self) -> Any:
        """Return the trainer's data module. Lightning sets this attribute of the trainer but does not declare it."""
        return cast(Any, self.trainer).datamodule

    @property
    def iterations_done(self) -> int:
        """Return the number of iterations that have been run."""
        return self.trainer.global_step

    @property
    def current_state(self) -> TrainState | None:
        """Return the current training state with the optimizer states, or None if this object has not been trained."""
        return self.__dict__.get("_state")

    @property
    def diagnostics(self) -> dict[str, Tensor]:
        """Return a dict of the losses, gradient norms and diagnostics of the last iteration."""
        return next(reversed(self.records.values()), {})

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        """Return one optimizer for each group, in the order of the groups."""
        networks = self.networks()

        def moved(group: ParamGroup) -> dict[str, nn.Parameter]:
            return group.of({name: p for name, p in networks[group.network].named_parameters() if p.requires_grad})

        return [*(StatefulOptimizer(moved(group), group.optimizer) for group in self.groups.values())]

    def setup(self, stage: str) -> None:
        """Resize the buffers that have one entry for each training example."""
        if stage == "fit" and self.per_example:
            self.keep_examples(len(self._data.splits.train))

    def on_fit_start(self) -> None:
        """Create the random generator, the noise seed and the learning-rate tensors that every iteration uses.

        An energy of bits starts at the mean of the training examples.

        Raises:
            ConfigError: If the trainer has no ``max_steps``.
        """
        if self.trainer.max_steps < 1:
            raise ConfigError(
                "The stream of minibatches has no end: give the Trainer max_steps, the number of iterations."
            )
        self.compiled = None
        self._generator = torch.Generator(self.device)
        # All processes have the same noise seed. Each of them draws the noise of the whole minibatch and keeps only the
        # noise of its own examples.
        self._noise_seed = derive_seed(self.seed, "noise", 0)
        self._lrs = {name: torch.zeros((), device=self.device) for name in self.rates}
        energy = self.parts.energy
        if isinstance(energy, BinaryEnergy):
            rows = self._data.splits.train.split(ROWS)
            energy.fit(self._data.as_float(part).to(self.device, self.dtype) for part in rows)

    def on_train_start(self) -> None:
        """Build the training state (parameters, buffers, optimizer states) that every iteration reads and updates."""
        found = self.optimizers()
        wrapped = found if isinstance(found, list) else [found]
        raw = [cast(StatefulOptimizer, optimizer.optimizer) for optimizer in wrapped]
        self._raw = dict(zip(self.groups, raw, strict=True))
        self._counted = wrapped[-1]
        self._state = self.train_state(self._raw, self._lrs)

    def training_step(self, batches: Tensor | list[Tensor], batch_idx: int) -> None:
        """Run one iteration for each of the given minibatches.

        Lightning's loop passes several minibatches at once, because one pass of that loop takes longer than an
        iteration of a small model.
        """
        self.records = {}
        for v in [batches] if isinstance(batches, Tensor) else batches:
            iteration = self.trainer.global_step
            state = self._state
            self._set_rates(iteration)
            # Consecutive seeds ensure that no two iterations of a run draw the same noise.
            generator = self._generator.manual_seed((self._noise_seed + iteration) % 2**32)
            minibatch = WHOLE if self.trainer.world_size == 1 else minibatch_of(v, self._data.rows_at(iteration))
            if self.per_example:
                state = state._replace(indices=self._data.indices_at(iteration).to(self.device))
            # This is the only optimizer step that Lightning sees and counts.
            self.records[iteration + 1] = self._counted.step(closure=partial(self.step, state, minibatch, v, generator))
            if self.stopping:
                return

    def _set_rates(self, iteration: int) -> None:
        """Set the learning rates of an iteration, and copy them to PyTorch's optimizers, where callbacks read them."""
        for name, lr in self.rates_at(iteration, self.trainer.max_steps).items():
            self._lrs[name].fill_(lr)
            if name in self._raw:
                self._raw[name].param_groups[0]["lr"] = lr

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Recompute Lightning's batch counts from the number of completed iterations.

        Lightning counts a block of iterations as one batch. The length of a block may differ between the run that wrote
        the checkpoint and this run.
        """
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        done = checkpoint["eblvm_lit"]["iteration"] // self._data.iterations_per_batch
        for counts in (progress["total"], progress["current"]):
            later = counts["ready"] - done
            counts.update({name: counts[name] - later for name in ("ready", "started", "processed", "completed")})

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Store the version, the method's name, the iteration and the configuration in the checkpoint.

        These values are stored as dicts, lists, strings and numbers, which can be loaded without unpickling code.
        """
        own = {"version": __version__, "method": torch.typename(type(self)), "iteration": self.iterations_done}
        checkpoint["eblvm_lit"] = own | {"config": self.description}

    def on_validation_epoch_start(self) -> None:
        """Reset the sum of the validation losses and the count of examples to zero."""
        self._validated = torch.zeros(2, dtype=torch.float64)

    def validation_step(self, v: Tensor, batch_idx: int) -> None:
        """Add the losses of the examples v to the running sum, using the same noise in every validation run."""
        if len(v) == 0:  # this process has no batch, because there are fewer batches than processes
            return
        rank, size = rank_and_size()
        generator = keyed_generator(self.seed, "validation", rank + size * batch_idx, device=v.device)
        # Like eager iterations, validation uses torch.autograd, because torch.func cannot recompute activations to save
        # memory.
        with plain_autograd():
            loss = self.validation_loss(v, generator).detach()
        self._validated += torch.tensor([loss.mean().item() * len(v), len(v)], dtype=torch.float64)

    def on_validation_epoch_end(self) -> None:
        """Write ``val/loss``, the mean over the examples of all processes, to the trainer's callback metrics.

        Lightning's ``self.log`` is not used, because it rounds float64 to float32 and because ``sync_dist`` rounds the
        number of examples per process down: with 3 examples in two processes it returns 1.5 times the mean.
        """
        total, n = sum_over_ranks(self._validated)
        self.trainer.callback_metrics["val/loss"] = total / n
