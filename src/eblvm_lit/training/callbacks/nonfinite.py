"""The callback that stops a run when a loss, gradient or parameter is NaN or infinite."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytorch_lightning as pl
import torch
from pydantic import PositiveInt
from torch import Tensor

from eblvm_lit.errors import NonFiniteError
from eblvm_lit.methods.base import Method

__all__ = ["StopOnNonFinite"]

HINT = "lower optimizer.lr or set optimizer.clip_norm; checkpoints written before are good."


class StopOnNonFinite(pl.Callback):
    """Raises an error at the first iteration whose loss or gradient norm, at any level, is NaN or infinite.

    The parameters are also checked, before each validation and each checkpoint, because a finite gradient may make a
    parameter overflow. So the last checkpoint is always finite.

    Args:
        every: The number of iterations between two checks, each of which waits for the device on a GPU. Checks also
            happen before each validation and each checkpoint, so that a larger number only makes the reported iteration
            less exact.

    Raises:
        NonFiniteError: With the name of the level, the quantity and the iteration.
    """

    def __init__(self, *, every: PositiveInt = 1) -> None:
        self.every = every

    def _check(self, method: Method, iteration: int, record: Mapping[str, Tensor]) -> None:
        broken = {name: value.item() for name, value in record.items() if not math.isfinite(value.item())}
        if not broken:
            return
        # report a quantity with a failure_hint, because it has caused the other non-finite quantities
        hints = {name: method.failure_hint(name.partition("_")[2]) for name in broken}
        # otherwise, report a single term of the loss, which is more informative than the total loss
        terms = [name for name in broken if not name.endswith(("_loss", "_grad_norm"))]
        name = next((name for name, failure_hint in hints.items() if failure_hint), [*terms, *broken][0])
        level, _, quantity = name.partition("_")
        raise NonFiniteError(
            f"The {level} level's {quantity.replace('_', ' ')} is {broken[name]} at iteration {iteration}: "
            f"{hints[name] or HINT}"
        )

    def check_parameters(self, method: Method) -> None:
        """Check the losses and gradient norms of the last iteration, and all parameters."""
        self._check(method, method.iterations_done, method.diagnostics)
        for network, module in method.networks().items():
            for name, parameter in module.named_parameters():
                if not bool(torch.isfinite(parameter).all()):
                    raise NonFiniteError(
                        f"The parameter {name} of {network} is not finite after iteration {method.iterations_done}: "
                        f"{HINT}"
                    )

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Method, *args: object) -> None:  # noqa: ARG002
        """Check the losses and gradient norms of each iteration of this batch, if a check of the iteration is due."""
        for iteration, record in pl_module.records.items():
            if iteration % self.every == 0:
                self._check(pl_module, iteration, record)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: Method) -> None:  # noqa: ARG002
        """Check the parameters before a validation."""
        self.check_parameters(pl_module)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Method) -> None:
        """Check the validation loss before a checkpoint is saved: it can overflow even if all parameters are finite."""
        loss = trainer.callback_metrics["val/loss"].item()
        if not math.isfinite(loss):
            raise NonFiniteError(f"val/loss is {loss} at iteration {pl_module.iterations_done}: {HINT}")

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: Method, checkpoint: dict) -> None:  # noqa: ARG002
        """Check the parameters before they are saved."""
        self.check_parameters(pl_module)
