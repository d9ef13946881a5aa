"""Stop where numbers stop being numbers."""

from __future__ import annotations

import pytorch_lightning as pl
import torch

from eblvm_lit.errors import EblvmError
from eblvm_lit.methods.base import Method

__all__ = ["NonFiniteError", "StopOnNonFinite"]


class NonFiniteError(EblvmError):
    """A loss or a gradient is not finite."""


class StopOnNonFinite(pl.Callback):
    """Raises at the first iteration whose loss or gradient norm, at any level, is NaN or infinite.

    It runs before any checkpoint of that iteration is written, so what was saved before stays the last good one.

    Args:
        every: Look every so many iterations. On a GPU each look waits for the device; looks also happen before each
            validation and thus before each checkpoint, so a larger number loses no safety, only the exact iteration.

    Raises:
        NonFiniteError: Names level, quantity and iteration.
    """

    def __init__(self, *, every: int = 1) -> None:
        self.every = every

    def check(self, method: Method) -> None:
        """Look at the last iteration."""
        record = method.diagnostics
        if not record or bool(torch.isfinite(sum(record.values()))):
            return
        for name, value in record.items():
            if not bool(torch.isfinite(value)):
                level, _, quantity = name.partition("_")
                raise NonFiniteError(
                    f"The {level} level's {quantity.replace('_', ' ')} is {value.item()} at iteration "
                    f"{method.iteration}: lower optimizer.lr or set optimizer.clip_norm; the last checkpoint is good."
                )

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Method, *args: object) -> None:  # noqa: ARG002
        """Look, if it is time."""
        if trainer.global_step % self.every == 0:
            self.check(pl_module)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: Method) -> None:  # noqa: ARG002
        """Look before anything is validated and saved."""
        self.check(pl_module)

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: Method, checkpoint: dict) -> None:  # noqa: ARG002
        """Never save parameters that came out of a non-finite step."""
        self.check(pl_module)
