"""The callback that logs losses, gradient norms, learning rates and speed by iteration."""

from __future__ import annotations

import time

import pytorch_lightning as pl
import torch

from eblvm_lit.methods.base import Method
from eblvm_lit.utils.quantities import Declares, Quantity

__all__ = ["LogCurves"]


class LogCurves(
    Declares,
    pl.Callback,
    emits={
        "iterations_per_second": Quantity(1, "iterations/s", "the rate of training, without metrics and figures"),
        "peak_memory_mib": Quantity(-1, "MiB above the parameters", "the largest memory of training"),
        "train/*_lr": Quantity(0, "", "the learning rate of a level"),
    },
):
    """Logs ``train/<level>_loss``, ``train/<level>_grad_norm``, ``train/<level>_lr`` and the iteration rate.

    The values are logged every ``trainer.log_every_n_steps`` iterations; in between, the CPU does not wait for the GPU.
    ``val/loss`` is logged at each validation; Lightning would log it one iteration too early.

    Attributes:
        rates: The iteration rates logged so far, without validations and the first batch, which may compile.
        memory: The peak memory of the iterations on a GPU, in MiB; None on a CPU.
    """

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.memory: float | None = None
        self._since: tuple[int, float] | None = None  # the time is measured from the end of the first batch on

    def on_validation_start(self, trainer: pl.Trainer, pl_module: Method) -> None:  # noqa: ARG002
        """Exclude the validation from the measured time and memory."""
        self._since = None
        if pl_module.device.type == "cuda" and self.memory is None:
            self.memory = torch.cuda.max_memory_allocated(pl_module.device) / 2**20

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Method) -> None:  # noqa: ARG002
        """Log the validation loss."""
        loss = trainer.callback_metrics["val/loss"].item()
        for logger in trainer.loggers:
            logger.log_metrics({"val/loss": loss}, step=trainer.global_step)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Method, *args: object) -> None:  # noqa: ARG002
        """Log losses, gradient norms, learning rates and the iteration rate, if they are due."""
        iteration = trainer.global_step
        now = time.perf_counter()
        self._since = self._since or (iteration, now)
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
