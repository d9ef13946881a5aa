"""The callback that logs losses, gradient norms, learning rates and speed by iteration."""

from __future__ import annotations

import time

import pytorch_lightning as pl

from eblvm_lit.methods.base import Method
from eblvm_lit.utils.memory import MemoryMeter

__all__ = ["LogCurves"]

# MiB of resident memory that come and go with a CPU process, whatever its tensors are.
CPU_NOISE = 10.0


class LogCurves(pl.Callback):
    """Logs ``train/<level>_loss``, ``train/<level>_grad_norm``, ``train/<level>_lr`` and the iteration rate.

    It does so every ``trainer.log_every_n_steps`` iterations: in between, nothing waits for the device. It also logs
    ``val/loss`` at each validation, which Lightning would log one iteration too early.

    Attributes:
        rates: The iteration rates logged so far.
        memory: Peak memory of iterations, in MiB, above the parameters, the optimizers' state and the compiled code,
            between the end of the first batch, or of the one that compiled, and the first validation. None until then,
            and on a CPU where it is below 10 MiB, which is the noise of the measurement.
    """

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.memory: float | None = None
        self._meter: MemoryMeter | None = None
        self._measured = False
        self._since: tuple[int, float] | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: Method) -> None:  # noqa: ARG002
        """Reset the clock, which starts after the first batch: its first iteration warms up, or compiles."""
        self._since, self._meter = None, None

    def on_validation_start(self, trainer: pl.Trainer, pl_module: Method) -> None:  # noqa: ARG002 - Lightning's
        """Leave the validation out of the measured time and memory."""
        self._since = None
        if self._meter is not None and not self._measured:
            self.memory, self._measured = self._meter.peak(), True
            if pl_module.device.type == "cpu" and (self.memory or 0.0) < CPU_NOISE:
                self.memory = None

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Method) -> None:  # noqa: ARG002
        """Log the validation loss."""
        loss = trainer.callback_metrics["val/loss"].item()
        for logger in trainer.loggers:
            logger.log_metrics({"val/loss": loss}, step=trainer.global_step)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Method, *args: object) -> None:  # noqa: ARG002
        """Log, if it is due."""
        iteration, now = trainer.global_step, time.perf_counter()
        compiled = self._since is not None and self._since[0] < pl_module.compiled_in
        if self._since is None or compiled:
            self._since = iteration, now
        if self._meter is None or (compiled and not self._measured):
            self._meter = MemoryMeter(pl_module.device)
        if iteration % trainer.log_every_n_steps:
            return
        metrics = {f"train/{name}": value.item() for name, value in pl_module.diagnostics.items()}
        for name, optimizer in zip(pl_module.groups, trainer.optimizers, strict=True):
            metrics[f"train/{name}_lr"] = optimizer.param_groups[0]["lr"]
        if iteration > self._since[0]:
            self.rates.append((iteration - self._since[0]) / (now - self._since[1]))
            metrics["train/iterations_per_second"] = self.rates[-1]
            self._since = iteration, now
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=iteration)
