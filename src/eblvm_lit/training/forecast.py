"""Warnings before long work: a run of days on a CPU, by the measured time of iterations, and enormous counts."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytorch_lightning as pl
import torch
from omegaconf import DictConfig
from torch import Tensor

from eblvm_lit.cli.build import Parts
from eblvm_lit.cli.instantiate import to_plain
from eblvm_lit.core.compile_choice import compiles
from eblvm_lit.core.minibatch import WHOLE
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.errors import EblvmError
from eblvm_lit.utils.numbers import duration

__all__ = ["iteration_seconds", "warn_of_counts", "warn_of_days"]

log = logging.getLogger(__name__)

DAY = 86400.0
# Runs below this number of iterations end within a day wherever an iteration ends within minutes.
MIN_ITERATIONS = 1000
# Examples of the two measured iterations. Two is the smallest minibatch that every objective takes.
FEW, MORE = 2, 8
# Counts of a part from which on its work is announced; the largest that is published is some 50,000.
MANY = 10**6
# Words of keys whose numbers are an amount of work, and a key that the data bound.
WORK, BOUNDED = {"n", "iter", "dim", "channels"}, "n_max"


def warn_of_counts(cfg: DictConfig) -> None:
    """Say which counts of a configuration ask for very much work, before any of it starts.

    A count may be meant, so it is not refused. How long an iteration takes, :func:`warn_of_days` measures.

    Args:
        cfg: Of the run; its data, method and callbacks are looked at.
    """
    parts = {name: to_plain(cfg.get(name), name) for name in ("method", "callbacks")}
    found = [f"{path}={count:,}" for path, count in _counts(parts, "")]
    if found:
        log.warning("Very much is asked for, and may take days or more memory than there is: %s.", ", ".join(found))


def _counts(node: Any, path: str) -> Iterator[tuple[str, int]]:
    """The paths and values of all enormous counts below a node."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            here = f"{path}.{key}" if path else str(key)
            if type(value) is int and value >= MANY and key != BOUNDED and WORK & set(str(key).split("_")):
                yield here, value
            yield from _counts(value, here)


def warn_of_days(parts: Parts, trainer: pl.Trainer, start: int = 0) -> None:
    """Warn of a run that would take more than a day on this CPU, and say what takes less.

    Args:
        parts: Data and method of the run.
        trainer: Its trainer.
        start: The iteration that it resumes from.
    """
    n_iterations = trainer.max_steps - start
    device = trainer.strategy.root_device
    if device.type != "cpu" or trainer.world_size > 1 or n_iterations < MIN_ITERATIONS:
        return
    method, size = parts.method, min(parts.data.batch_size, len(parts.data.splits.train))
    compiled = compiles(method.compile_mode, device).compiled is not False  # a run of days repays compilation
    try:
        seconds = n_iterations * iteration_seconds(parts, size, DAY / n_iterations, overhead=not compiled)
    except (EblvmError, RuntimeError, TypeError, ValueError) as error:  # the run itself will say what is wrong
        log.debug("The time of an iteration could not be measured (%s).", error)
        return
    if seconds > DAY:
        log.warning("%s", warning(seconds, is_image=len(parts.data.event_shape) == 3))


def warning(seconds: float, *, is_image: bool) -> str:
    """The warning.

    Example:
        >>> print(warning(3.5e6, is_image=True))
        This run needs about 41 days on this CPU: use a GPU (trainer.accelerator=gpu), a smaller model
        (model=deep_small) or fewer iterations (trainer.max_steps=...).
    """
    smaller = "a smaller model (model=deep_small)" if is_image else "a smaller model (model.h_dim=...)"
    return (
        f"This run needs about {duration(seconds)} on this CPU: use a GPU (trainer.accelerator=gpu), {smaller} or "
        "fewer iterations (trainer.max_steps=...)."
    )


def iteration_seconds(parts: Parts, n: int, enough: float, *, overhead: bool = True) -> float:
    """The time of one iteration with n examples, from iterations of a copy of the method with a few examples.

    Args:
        parts: Data and method of the run.
        n: The examples of a minibatch.
        enough: Iterations of fewer seconds need not be told apart: then an upper bound is returned.
        overhead: Whether the time that does not grow with the examples is counted; compiled iterations have little.
    """
    method = copy.deepcopy(parts.method)
    method.keep_examples(MORE)
    v = parts.data.as_float(parts.data.splits.train[:MORE].clone())
    optimizers = dict(zip(method.groups, method.configure_optimizers(), strict=True))
    lrs = {name: torch.zeros(()) for name in method.rates}
    state = method.train_state(optimizers, lrs)

    def seconds(v: Tensor) -> float:
        began = time.perf_counter()
        method.step(state, WHOLE, v, keyed_generator(0, "forecast"))
        return time.perf_counter() - began

    few = min(seconds(v[:FEW]) for _ in range(2))  # the first one also warms up
    if few * n / FEW < enough or len(v) < MORE:
        return few * n / FEW
    each = max(seconds(v) - few, 0.0) / (MORE - FEW)
    return each * n + (max(few - each * FEW, 0.0) if overhead else 0.0)
