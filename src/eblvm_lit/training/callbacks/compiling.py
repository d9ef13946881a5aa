"""The callback that compiles the training iteration, and the rule by which ``method.compile=auto`` decides."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Literal

import pytorch_lightning as pl
import torch
from torch import Tensor

from eblvm_lit.core.fast_paths import compile_step
from eblvm_lit.core.functional import plain_autograd
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.base import Method
from eblvm_lit.methods.state import TrainState
from eblvm_lit.utils.memory import lacks_memory

__all__ = ["Compiling", "choose", "for_full_minibatches"]

log = logging.getLogger(__name__)

LONG = 5_000  # from this number of iterations on, compilation saves more time than it takes


def choose(mode: bool | Literal["auto"], device: torch.device, max_steps: int) -> tuple[bool, str]:
    """Return whether to compile the training iterations, and the reason as a sentence.

    ``auto`` compiles runs of 5,000 iterations or more. Compilation takes 12 to 40 s on one core. In each iteration it
    saves 0.9 ms (DSM) to 6.7 ms (BiDSM, K = N = 5) on the checkerboard, and 22 ms on Frey faces.

    Args:
        mode: The value of ``method.compile``.
        device: The device of the run.
        max_steps: The number of iterations of the whole run, so that a resumed run makes the same choice.

    Raises:
        ConfigError: If ``mode`` is true and no compiler was found.

    Example:
        >>> choose(False, torch.device("cpu"), 20_000)
        (False, 'compile=false: running eagerly.')
    """
    if mode is False:
        return False, "compile=false: running eagerly."
    missing = missing_compiler(device)
    if mode is True and missing:
        raise ConfigError(f"method.compile=true, but {missing}: use method.compile=auto or false.")
    if missing or (mode == "auto" and max_steps < LONG):
        return False, f"compile=auto: running eagerly, {missing or f'which is faster below {LONG:,} iterations'}."
    return True, f"compile={str(mode).lower()}: compiling the whole iteration, for about half a minute."


def missing_compiler(device: torch.device) -> str | None:
    """Return why compilation for a device is impossible; None if it is possible."""
    if torch.__version__ < (2, 14):
        return f"torch {torch.__version__} cannot compile an iteration, and 2.14 can"
    if device.type == "cpu":
        found = any(map(shutil.which, ("g++", "clang++")))
    else:
        found = device.type == "cuda" and find_spec("triton") is not None
    return None if found else f"no compiler for {device.type} was found"


class Compiling(pl.Callback):
    """Compiles a method's iteration at the first full minibatch; iterations on smaller minibatches run eagerly.

    Raises:
        ConfigError: If compilation fails, with ``method.compile=true`` or several processes.

    Example:
        >>> trainer = pl.Trainer(callbacks=[Compiling()], max_steps=1, logger=False, enable_checkpointing=False)
    """

    def on_train_start(self, trainer: pl.Trainer, pl_module: Method) -> None:
        """Decide whether to compile; the compilation itself happens at the next full minibatch."""
        compiled, sentence = choose(pl_module.compile_mode, pl_module.device, trainer.max_steps)
        log.info("%s", sentence)
        data: Any = trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
        full = min(data.batch_size, len(data.splits.train))
        may_fail = pl_module.compile_mode == "auto" and trainer.world_size == 1
        pl_module.compiled = for_full_minibatches(pl_module, full, may_fail) if compiled else None


def for_full_minibatches(method: Method, full: int, may_fail: bool) -> Callable[..., dict[str, Tensor]]:
    """Return a function that runs compiled iterations for full minibatches, and eager iterations for all others.

    Args:
        method: The method.
        full: The number of examples in a full minibatch.
        may_fail: Whether a failed compilation makes the method run eagerly, instead of raising an error.
    """
    step = compile_step(method.run_iteration)
    has_run = False

    def eagerly(*args: Any) -> dict[str, Tensor]:
        with plain_autograd():
            return method.run_iteration(*args)

    def run(state: TrainState, v: Tensor, noise: Any) -> dict[str, Tensor]:
        nonlocal has_run
        if state.minibatch.size(v) != full:  # the smaller last minibatch of an epoch is not worth a compilation
            return eagerly(state, v, noise)
        if has_run:
            return step(state, v, noise)
        try:
            record = step(state, v, noise)
        except Exception as error:  # Dynamo, Inductor and the C++ compiler raise errors without a common base class
            if lacks_memory(error):
                raise
            cause = getattr(error, "inner_exception", error)
            line = str(cause).strip().partition("\n")[0]
            reason = f"the iteration could not be compiled ({type(cause).__name__}: {line})"
            if not may_fail:
                mode = str(method.compile_mode).lower()
                raise ConfigError(f"method.compile={mode}, but {reason}: use method.compile=false.") from error
            log.warning("compile=auto: running eagerly, because %s.", reason)
            method.compiled = None
            return eagerly(state, v, noise)
        has_run = True
        return record

    return run
