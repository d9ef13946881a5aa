"""Leave when told to, with a checkpoint behind."""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType

import pytorch_lightning as pl

from eblvm_lit.errors import EblvmError
from eblvm_lit.methods.base import Method

__all__ = ["InterruptedRunError", "Preemption"]


class InterruptedRunError(EblvmError):
    """The run was told to stop and can go on from its last checkpoint."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Preemption(pl.Callback):
    """On SIGTERM or SIGINT, finishes the iteration, writes ``checkpoints/last.ckpt`` and ends the run.

    The handler only sets a flag: Lightning's own acts inside of the signal, where it can deadlock.

    Args:
        save_dir: The run's folder.

    Raises:
        InterruptedRunError: At the end of the iteration in which the signal came.
    """

    def __init__(self, *, save_dir: str) -> None:
        self.checkpoint = Path(save_dir) / "checkpoints" / "last.ckpt"
        self.received: int | None = None
        self._previous: dict[int, object] = {}

    def _receive(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.received is not None and number == signal.SIGINT:  # the second Ctrl-C means it
            raise KeyboardInterrupt
        self.received = number

    def setup(self, trainer: pl.Trainer, pl_module: Method, stage: str) -> None:  # noqa: ARG002
        """Install the handlers; setup runs before Lightning's own are, which then stand back."""
        self.received = None
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous[number] = signal.signal(number, self._receive)

    def teardown(self, trainer: pl.Trainer, pl_module: Method, stage: str) -> None:  # noqa: ARG002
        """Give the handlers back."""
        while self._previous:
            number, handler = self._previous.popitem()
            signal.signal(number, handler)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Method, *args: object) -> None:  # noqa: ARG002
        """Save and leave, if told to."""
        if self.received is None:
            return
        trainer.save_checkpoint(self.checkpoint)
        name = signal.Signals(self.received).name
        raise InterruptedRunError(
            f"Stopped by {name} after iteration {trainer.global_step}; go on with the same command and "
            f"ckpt={self.checkpoint}.",
            exit_code=128 + self.received,
        )

    def on_exception(self, trainer: pl.Trainer, pl_module: Method, exception: BaseException) -> None:  # noqa: ARG002
        """Teardown is not called after every exception."""
        self.teardown(trainer, pl_module, "fit")
