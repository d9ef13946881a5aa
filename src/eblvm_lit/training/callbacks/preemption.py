"""The callback that saves a checkpoint and ends the run when a signal asks for it."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytorch_lightning as pl

from eblvm_lit.core.ranks import largest_over_ranks, rank_and_size
from eblvm_lit.errors import EblvmError
from eblvm_lit.methods.base import Method
from eblvm_lit.utils.interrupts import Interruption, handled, received

__all__ = ["InterruptedRunError", "Preemption"]


class InterruptedRunError(EblvmError):
    """A signal stopped the run, which can be resumed from its last checkpoint."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Preemption(pl.Callback):
    """On SIGTERM, SIGHUP, SIGUSR1 or SIGINT, finishes the iteration, writes ``checkpoints/last.ckpt`` and ends the run.

    The handler only sets a flag, because Lightning's own handler acts inside of the signal, where it can deadlock. Any
    of several processes may receive the signal: after each batch they agree whether one has, and all stop together.
    Before and after training, :func:`~eblvm_lit.utils.interrupts.raise_interrupts` ends the process at once.

    Args:
        save_dir: The run's folder.

    Raises:
        InterruptedRunError: At the end of the iteration, or the validation, in which the signal came.
        Interruption: At once, for a second SIGINT, and for a signal that comes while an iteration is compiled in a
            single process.
    """

    def __init__(self, *, save_dir: str) -> None:
        self.checkpoint = Path(save_dir) / "checkpoints" / "last.ckpt"
        self.received: int | None = None
        self._method: Method | None = None
        self._before: dict[int, Any] = {}

    def _receive(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        received(number)
        name, is_first = signal.Signals(number).name, self.received is None
        if number == signal.SIGINT and not is_first:  # a second Ctrl-C stops at once
            raise Interruption(number, f"Stopped at once by a second {name}, without another checkpoint.")
        self.received = number
        self._method.stopping = rank_and_size()[1] == 1  # several processes finish their batch together
        if is_first and self._method.compiling:  # which takes a minute or more
            raise Interruption(number, f"Stopped by {name} while an iteration was compiled.")

    def on_train_start(self, trainer: pl.Trainer, pl_module: Method) -> None:  # noqa: ARG002
        """Handle signals from here on."""
        self.received, self._method = None, pl_module
        pl_module.stopping = pl_module.compiling = False
        if threading.current_thread() is threading.main_thread():  # Python allows handlers nowhere else
            self._before = {number: signal.signal(number, self._receive) for number in handled()}

    def _restore(self) -> None:
        """Give the signals back to whoever handled them before."""
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _stop_requested(self) -> bool:
        """Whether any process was told to stop; all processes call it at the same time."""
        number = largest_over_ranks(self.received or 0)
        if number:  # else keep a signal that arrives meanwhile for the next call
            self.received = number
        return number > 0

    def _leave(self, trainer: pl.Trainer) -> None:
        name = signal.Signals(self.received).name
        raise InterruptedRunError(
            f"Stopped by {name} after iteration {trainer.global_step}; resume with the same command and "
            f"ckpt={self.checkpoint}.",
            exit_code=128 + self.received,
        )

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Method, *args: object) -> None:  # noqa: ARG002
        """Save and stop, if a signal asked for it."""
        if not self._stop_requested():
            return
        trainer.save_checkpoint(self.checkpoint, weights_only=False)
        if trainer.global_step % (trainer.val_check_batch * trainer.datamodule.iterations_per_batch):
            self._leave(trainer)
        # else a validation comes first: a run that resumes before it would skip it

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Method) -> None:  # noqa: ARG002
        """Save and stop, if a signal asked for it."""
        if self._stop_requested():
            trainer.save_checkpoint(self.checkpoint, weights_only=False)
            self._leave(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: Method) -> None:  # noqa: ARG002
        """Handle signals no longer, and stop if one came after the last validation."""
        self._restore()
        if self._stop_requested():
            self._leave(trainer)

    def on_exception(self, trainer: pl.Trainer, pl_module: Method, exception: BaseException) -> None:  # noqa: ARG002
        """Handle signals no longer."""
        self._restore()
