"""The progress of training: Lightning's bar, which counts iterations, or a printed line at each validation."""

from __future__ import annotations

import time
from typing import Any

import pytorch_lightning as pl
from pydantic import NonNegativeFloat
from pytorch_lightning.callbacks import RichProgressBar
from rich import get_console

from eblvm_lit.methods.base import Method
from eblvm_lit.utils.printing import say

__all__ = ["IterationBar"]


class IterationBar(RichProgressBar):
    """Shows Lightning's progress bar; it counts iterations up to ``max_steps`` instead of batches of an endless epoch.

    The bar also shows the losses. If the output goes to a file, where Lightning's bar shows nothing, this callback
    prints a line at each validation.

    Args:
        interval: The number of seconds between two updates, each of which waits for the device.
    """

    def __init__(self, *, interval: NonNegativeFloat = 0.25) -> None:
        super().__init__(refresh_rate=4, leave=True)
        self.interval = interval
        self._last = 0.0
        self._prints = False
        self._printed = (0.0, 0)  # the time and the iteration of the last printed line

    def setup(self, trainer: pl.Trainer, pl_module: Method, stage: str) -> None:
        """Choose between the bar and printed lines; only the first process shows them."""
        super().setup(trainer, pl_module, stage)
        if self._prints or (self.is_enabled and not get_console().is_terminal):
            self._prints = True
            self.disable()

    def on_train_start(self, trainer: pl.Trainer, pl_module: Method) -> None:
        """Start the timer of the iteration rate."""
        self._printed = (time.monotonic(), trainer.global_step)
        super().on_train_start(trainer, pl_module)

    @property
    def total_train_batches(self) -> int:
        """The number of iterations of the run."""
        return self.trainer.max_steps

    def _get_train_description(self, current_epoch: int) -> str:  # noqa: ARG002
        return "Iteration"

    def get_metrics(self, trainer: pl.Trainer, pl_module: Method) -> dict[str, Any]:
        """Return the losses of the last iteration, and the loss of the last validation."""
        losses = {name: value for name, value in pl_module.diagnostics.items() if name.endswith("_loss")}
        losses |= {name: value for name, value in trainer.callback_metrics.items() if name == "val/loss"}
        return {name: value.item() for name, value in losses.items()}

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Method, outputs: Any, batch: Any, i: int) -> None:  # noqa: ARG002
        """Update the bar if an update is due."""
        if self.is_enabled and time.monotonic() - self._last >= self.interval:
            self._last = time.monotonic()
            super().on_train_batch_end(trainer, pl_module, outputs, batch, trainer.global_step - 1)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Method) -> None:
        """Update the bar; without a terminal, print the progress and the iteration rate since the last printed line."""
        super().on_train_batch_end(trainer, pl_module, None, None, trainer.global_step - 1)
        super().on_validation_end(trainer, pl_module)
        if self._prints:
            now = (time.monotonic(), trainer.global_step)
            (then, before) = self._printed
            self._printed = now
            losses = [f"{name} {value:.4g}" for name, value in self.get_metrics(trainer, pl_module).items()]
            rate = f"{(now[1] - before) / max(now[0] - then, 1e-9):.3g} it/s"
            say("  ".join([f"{now[1]:,}/{trainer.max_steps:,}", rate, *losses]))
