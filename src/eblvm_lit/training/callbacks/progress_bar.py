"""The progress of training: iterations, elapsed time, time left, the rate of the last seconds, and the losses."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from statistics import fmean

import pytorch_lightning as pl
from pytorch_lightning.callbacks.progress.progress_bar import ProgressBar
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.base import Method
from eblvm_lit.utils.numbers import clock, duration, significant
from eblvm_lit.utils.printing import has_bars, record, say
from eblvm_lit.utils.progress import RateMeter, progress_bar

__all__ = ["IterationBar"]

# Seconds of iterations after which their rate is known well enough to estimate the whole run, and the shortest rest
# that an estimate is worth a line for.
MEASURED, WORTH_SAYING = 3.0, 15.0
BAR_WIDTHS = (10, 40)


def _nothing(n: int) -> None:
    """Count nothing."""


class IterationBar(ProgressBar):
    """A progress bar that redraws at fixed times, so that its cost does not depend on the length of an iteration.

    Without a terminal it prints a line at each validation instead; a validation that takes long has its own progress.
    The log file gets these lines in both cases. The rate is that of the last ten seconds, without validations; the
    first call and the one that compiles are not counted. The time left includes the validations that will come.

    Args:
        interval: Seconds between two redraws.
    """

    def __init__(self, *, interval: float = 0.25) -> None:
        super().__init__()
        if interval < 0:
            raise ConfigError(f"A progress bar needs an interval >= 0, in seconds, not {interval}.")
        self.interval = interval
        self._enabled = True
        self._progress: Progress | None = None
        self._task = TaskID(0)
        self._last = 0.0
        self._validating = ExitStack()  # shows the progress of a validation
        self._on_validated: Callable[[int], None] = _nothing
        self._begin(0)

    def _begin(self, iteration: int) -> None:
        self._began, self._meter, self._estimated = time.monotonic(), RateMeter(), False
        self._compiled_in = 0
        self._validated_at, self._validation_interval = iteration, 0
        self._validations: list[float] = []

    def disable(self) -> None:
        """Show nothing (Lightning calls this on all ranks but the first)."""
        self._enabled = False

    def enable(self) -> None:
        """Show the bar."""
        self._enabled = True

    def on_train_start(self, trainer: pl.Trainer, pl_module: Method) -> None:
        """Draw the bar."""
        super().on_train_start(trainer, pl_module)
        self._begin(trainer.global_step)
        console = Console()  # a new one: rich's shared console may have been created before the terminal was known
        if not self._enabled or not has_bars(console):
            return
        width = min(max(BAR_WIDTHS[0], console.width - 100), BAR_WIDTHS[1])
        # names of losses are text, and no markup
        count, rest = (TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in ("count", "rest"))
        columns = (count, BarColumn(width), rest)
        self._progress = Progress(*columns, console=console, auto_refresh=False)
        self._task = self._progress.add_task("train", total=trainer.max_steps, count="", rest="")
        self._draw(trainer, pl_module)
        self._progress.start()

    def _seconds_left(self, trainer: pl.Trainer) -> float | None:
        """Of the iterations and validations to come; None while their rate is unknown."""
        rate, rest = self._meter.rate, trainer.max_steps - trainer.global_step
        if not rate:
            return None
        n_validations = round(rest / self._validation_interval) if self._validation_interval else 0
        return rest / rate + (n_validations * fmean(self._validations) if n_validations else 0.0)

    def _describe(self, trainer: pl.Trainer, method: Method) -> tuple[str, list[str]]:
        """Times and rate, and the losses."""
        text, left = clock(time.monotonic() - self._began), self._seconds_left(trainer)
        if left is not None:
            text += f", {clock(left)} left  {significant(self._meter.rate, 3)} it/s"
        losses = {name: value.item() for name, value in method.diagnostics.items() if name.endswith("_loss")}
        losses |= {k: v.item() for k, v in trainer.callback_metrics.items() if k == "val/loss"}
        return text, [f"{k} {v:.4g}" for k, v in losses.items()]

    def _line(self, trainer: pl.Trainer, method: Method) -> str:
        times, losses = self._describe(trainer, method)
        return "  ".join([f"{trainer.global_step:,}/{trainer.max_steps:,}", times, *losses])

    def _draw(self, trainer: pl.Trainer, method: Method) -> None:
        """Update the bar; losses that do not fit beside it are left out."""
        count = f"{trainer.global_step:,}/{trainer.max_steps:,}"
        rest, losses = self._describe(trainer, method)
        room = self._progress.console.width - len(count) - self._progress.columns[1].bar_width - 2
        for loss in losses:
            if len(rest) + 2 + len(loss) > room:
                break
            rest += f"  {loss}"
        fields = {"count": count, "rest": rest}
        self._progress.update(self._task, completed=trainer.global_step, refresh=True, **fields)

    def _estimate(self, trainer: pl.Trainer) -> None:
        """Say once how long the run takes, as soon as that is known."""
        if self._meter.measured < MEASURED:
            return
        self._estimated, left = True, self._seconds_left(trainer)
        if left < WORTH_SAYING:
            return
        rate, rest = significant(self._meter.rate, 3), trainer.max_steps - trainer.global_step
        more = "" if self._validations else ", and the validations"
        text = f"About {duration(left)} left: {rest:,} iterations at {rate} it/s{more}."
        if self._progress is None:
            say(text)
        else:
            self._progress.console.print(text, highlight=False)
            record(text)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Method, *args: object) -> None:  # noqa: ARG002
        """Redraw, if it is due."""
        if not self._enabled:
            return
        if pl_module.compiled_in > self._compiled_in:  # the rate before is not the one to come
            self._compiled_in, self._meter, self._estimated = pl_module.compiled_in, RateMeter(), False
        self._meter.update(trainer.global_step)
        if not self._estimated:
            self._estimate(trainer)
        if self._progress is None or time.monotonic() - self._last < self.interval:
            return
        self._last = time.monotonic()
        self._draw(trainer, pl_module)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: Method) -> None:
        """Stop the clock of the rate, and clear the bar: metrics may show other progress bars."""
        super().on_validation_start(trainer, pl_module)
        self._meter.pause()
        if self._progress is not None:
            self._progress.live.transient = True
            self._progress.stop()
        if self._enabled:
            bar = progress_bar("validation", sum(int(n) for n in trainer.num_val_batches))
            self._on_validated = self._validating.enter_context(bar)

    def on_validation_batch_end(self, *args: object, **kwargs: object) -> None:  # noqa: ARG002
        """Count the batch."""
        self._on_validated(1)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: Method) -> None:
        """Remove the bar of the validation's batches."""
        super().on_validation_epoch_end(trainer, pl_module)
        self._validating.close()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Method) -> None:
        """Show the bar again; without a terminal, print the progress."""
        super().on_validation_end(trainer, pl_module)
        self._validations.append(self._meter.resume())
        self._validation_interval = trainer.global_step - self._validated_at
        self._validated_at = trainer.global_step
        if not self._enabled:
            return
        line = self._line(trainer, pl_module)
        if self._progress is None:
            say(line)
            return
        record(line)
        self._progress.live.transient = False
        self._progress.start()

    def _stop(self) -> None:
        self._validating.close()
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def on_train_end(self, trainer: pl.Trainer, pl_module: Method) -> None:
        """Draw the final state of the bar."""
        if self._progress is not None:
            self._draw(trainer, pl_module)
        self._stop()

    def on_exception(self, trainer: pl.Trainer, pl_module: Method, exception: BaseException) -> None:  # noqa: ARG002
        """Remove the bar."""
        self._stop()
