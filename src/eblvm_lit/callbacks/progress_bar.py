"""A progress bar that counts iterations and shows the losses of all levels."""

from __future__ import annotations

import time

import pytorch_lightning as pl
from pytorch_lightning.callbacks.progress.progress_bar import ProgressBar
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from eblvm_lit.methods.base import Method

__all__ = ["IterationBar"]


class IterationBar(ProgressBar):
    """A progress bar that redraws at fixed times, so that its cost does not depend on the length of an iteration.

    Without a terminal it prints a line at each validation instead.

    Args:
        interval: Seconds between two redraws.
    """

    def __init__(self, *, interval: float = 0.25) -> None:
        super().__init__()
        self.interval = interval
        self._enabled = True
        self._progress: Progress | None = None
        self._task = TaskID(0)
        self._last = 0.0
        self._began = (0, 0.0)

    def disable(self) -> None:
        """Show nothing (Lightning calls this on all ranks but the first)."""
        self._enabled = False

    def enable(self) -> None:
        """Show the bar."""
        self._enabled = True

    def on_train_start(self, trainer: pl.Trainer, pl_module: Method) -> None:
        """Draw the bar."""
        super().on_train_start(trainer, pl_module)
        self._began = trainer.global_step, time.monotonic()
        console = Console()  # a new one: rich's shared console may have been created before the terminal was known
        if not self._enabled or not console.is_terminal:
            return
        columns = (
            TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
            BarColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[losses]}"),
        )
        self._progress = Progress(*columns, console=console, auto_refresh=False)
        self._task = self._progress.add_task("train", total=trainer.max_steps, rate="", losses="")
        self._progress.start()

    def _describe(self, trainer: pl.Trainer, method: Method) -> tuple[str, str]:
        start, when = self._began
        rate = (trainer.global_step - start) / max(time.monotonic() - when, 1e-9)
        losses = {name: value.item() for name, value in method.diagnostics.items() if name.endswith("_loss")}
        losses |= {k: v.item() for k, v in trainer.callback_metrics.items() if k == "val/loss"}
        return f"{rate:,.0f} it/s", "  ".join(f"{k} {v:.4g}" for k, v in losses.items())

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Method, *args: object) -> None:  # noqa: ARG002
        """Redraw, if it is due."""
        if self._progress is None or time.monotonic() - self._last < self.interval:
            return
        self._last = time.monotonic()
        rate, losses = self._describe(trainer, pl_module)
        self._progress.update(self._task, completed=trainer.global_step, rate=rate, losses=losses, refresh=True)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: Method) -> None:
        """Clear the bar: metrics may show other progress bars."""
        super().on_validation_start(trainer, pl_module)
        if self._progress is not None:
            self._progress.live.transient = True
            self._progress.stop()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Method) -> None:
        """Show the bar again; without a terminal, print the progress."""
        super().on_validation_end(trainer, pl_module)
        if self._progress is not None:
            self._progress.live.transient = False
            self._progress.start()
        elif self._enabled:
            print(f"{trainer.global_step:,}/{trainer.max_steps:,}  " + "  ".join(self._describe(trainer, pl_module)))

    def _stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def on_train_end(self, trainer: pl.Trainer, pl_module: Method) -> None:  # noqa: ARG002
        """Draw the final state of the bar."""
        if self._progress is not None:
            self._progress.update(self._task, completed=trainer.global_step, refresh=True)
        self._stop()

    def on_exception(self, trainer: pl.Trainer, pl_module: Method, exception: BaseException) -> None:  # noqa: ARG002
        """Remove the bar."""
        self._stop()
