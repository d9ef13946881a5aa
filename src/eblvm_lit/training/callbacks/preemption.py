"""The callback that saves a checkpoint and stops the run when it receives a signal."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytorch_lightning as pl

from eblvm_lit.core.ranks import largest_over_ranks, rank_and_size
from eblvm_lit.errors import InterruptedRunError
from eblvm_lit.methods.base import Method
from eblvm_lit.training.provenance import resume_command

__all__ = ["Preemption", "stopping_signals"]


def stopping_signals() -> list[signal.Signals]:
    """Return the signals that stop a run.

    Batch systems send SIGTERM or SIGUSR1. Terminals send SIGINT for Ctrl-C, and SIGHUP when they are closed. If SIGHUP
    is ignored, as under nohup, it stays ignored.

    Example:
        >>> signal.SIGTERM in stopping_signals()
        True
    """
    return [
        number
        for number in signal.Signals
        if number.name in ("SIGTERM", "SIGINT", "SIGUSR1")
        or (number.name == "SIGHUP" and signal.getsignal(number) != signal.SIG_IGN)
    ]


class Preemption(pl.Callback):
    """Finishes the iteration, writes a checkpoint and stops the run on SIGTERM, SIGINT, SIGUSR1 or SIGHUP.

    The handler only sets a flag, because Lightning's own handler acts inside the signal handler, where several
    processes deadlock. After each batch, all processes ask whether one of them has received a signal. A second SIGINT
    has its usual effect, as all signals have before and after training. A second SIGTERM has no further effect, because
    a process may receive the same SIGTERM of SLURM twice, once directly and once from torchrun.

    Args:
        save_dir: The run's folder.

    Raises:
        InterruptedRunError: At the end of the iteration or validation during which the signal was received.
    """

    def __init__(self, *, save_dir: str) -> None:
        self.checkpoint = Path(save_dir) / "checkpoints" / "last.ckpt"
        self.received = 0
        self._method: Method | None = None
        self._before: dict[int, Any] = {}

    def _receive(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.received = number
        # a single process stops after the current iteration; several processes stop together after the current batch
        self._method.stopping = rank_and_size()[1] == 1
        if number == signal.SIGINT:
            signal.signal(number, self._before.pop(number))

    def on_train_start(self, trainer: pl.Trainer, pl_module: Method) -> None:  # noqa: ARG002
        """Install the signal handlers, which replace Lightning's handlers."""
        self.received = 0
        self._method = pl_module
        pl_module.stopping = False
        if threading.current_thread() is threading.main_thread():  # no other thread may set signal handlers
            self._before = {number: signal.signal(number, self._receive) for number in stopping_signals()}

    def _restore(self) -> None:
        while self._before:
            signal.signal(*self._before.popitem())

    def _save_and_stop(self, trainer: pl.Trainer, *, leave: bool = True) -> None:
        """Save a checkpoint and stop if any process has received a signal; all processes must call this method."""
        number = largest_over_ranks(self.received)
        if number:
            self.received = number
            trainer.save_checkpoint(self.checkpoint, weights_only=False)
            if leave:
                raise InterruptedRunError(
                    f"Stopped by {signal.Signals(number).name} after iteration {trainer.global_step}; "
                    f"{resume_command(self.checkpoint.parent.parent)}.",
                    number,
                )

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Method, *args: object) -> None:  # noqa: ARG002
        """Save a checkpoint and stop if a signal has been received; if a validation follows, do not stop yet.

        A run that is resumed from a checkpoint before a validation would skip this validation.
        """
        validates = trainer.global_step % (trainer.val_check_batch * trainer.datamodule.iterations_per_batch) == 0
        self._save_and_stop(trainer, leave=not validates)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Method) -> None:  # noqa: ARG002
        """Save a checkpoint and stop if a signal has been received."""
        self._save_and_stop(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: Method) -> None:  # noqa: ARG002
        """Remove the signal handlers, and stop if a signal was received after the last validation."""
        self._restore()
        self._save_and_stop(trainer)

    def on_exception(self, trainer: pl.Trainer, pl_module: Method, exception: BaseException) -> None:  # noqa: ARG002
        """Remove the signal handlers after an error."""
        self._restore()
