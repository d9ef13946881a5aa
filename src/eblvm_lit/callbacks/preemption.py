"""The callback that saves a checkpoint and ends the run when a signal asks for it."""

from __future__ import annotations

import logging
import signal
import threading
from pathlib import Path
from types import FrameType

import pytorch_lightning as pl

from eblvm_lit.distributed.ranks import largest_over_ranks, rank_and_size
from eblvm_lit.errors import EblvmError
from eblvm_lit.methods.base import Method

__all__ = ["InterruptedRunError", "Preemption"]

# The signals of batch systems and users; some batch systems announce the end of the time by SIGUSR1.
SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGUSR1") if hasattr(signal, name)]

log = logging.getLogger(__name__)


class InterruptedRunError(EblvmError):
    """A signal stopped the run, which can be resumed from its last checkpoint."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Preemption(pl.Callback):
    """On SIGTERM, SIGUSR1 or SIGINT, finishes the iteration, writes ``checkpoints/last.ckpt`` and ends the run.

    The handler only sets a flag, because Lightning's own handler acts inside of the signal, where it can deadlock. Any
    of several processes may receive the signal: after each batch they agree whether one has, and all stop together.

    Args:
        save_dir: The run's folder.

    Raises:
        InterruptedRunError: At the end of the iteration, or the validation, in which the signal came.
    """

    def __init__(self, *, save_dir: str) -> None:
        self.checkpoint = Path(save_dir) / "checkpoints" / "last.ckpt"
        self.received: int | None = None
        self._method: Method | None = None

    def _receive(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.received is not None and number == signal.SIGINT:  # a second Ctrl-C stops at once
            log.error("Stopped at once by a second %s, without another checkpoint.", signal.Signals(number).name)
            raise SystemExit(128 + number)
        self.received = number
        self._method.stopping = rank_and_size()[1] == 1  # several processes finish their batch together

    def on_train_start(self, trainer: pl.Trainer, pl_module: Method) -> None:  # noqa: ARG002
        """Replace the handlers that Lightning has installed; it restores the original ones at the end."""
        self.received, self._method = None, pl_module
        pl_module.stopping = False
        if threading.current_thread() is threading.main_thread():  # Python allows handlers nowhere else
            for number in SIGNALS:
                signal.signal(number, self._receive)

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
        """The signal came after the last validation."""
        if self._stop_requested():
            self._leave(trainer)
