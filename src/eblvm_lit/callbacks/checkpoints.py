"""Checkpoints: the last state, and the best by validation."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.io import TorchCheckpointIO

from eblvm_lit.errors import ConfigError, DataError
from eblvm_lit.methods.base import Method

__all__ = ["AtomicCheckpointIO", "Checkpoints", "load_checkpoint"]

KEYS = {"state_dict", "eblvm_lit"}


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint as data: nothing in it is executed.

    Raises:
        DataError: If the file is missing, damaged, holds more than data, or is not a checkpoint of this package.
    """
    if not Path(path).is_file():
        raise DataError(f"There is no checkpoint at {path}.")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # torch raises half a dozen types here, from truncated zip archives to forbidden pickles
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(f"{path} is not a readable checkpoint (truncated, or not plain data): {reason}") from None
    if not isinstance(checkpoint, dict) or not KEYS <= set(checkpoint):
        raise DataError(f"{path} is not a checkpoint of eblvm_lit: it lacks {', '.join(sorted(KEYS))}.")
    return checkpoint


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes to a temporary name beside the file, flushes to the disk and renames: never half a file under its name."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Save, or leave what was there as it was."""
        if storage_options is not None:
            raise ConfigError("Checkpoints are local files: storage_options is not supported.")
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".tmp")
        try:
            with open(partial, "wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise DataError(f"The checkpoint {path} could not be written ({error}); earlier ones are intact.") from error

    def load_checkpoint(self, path: str | Path, *args: Any, **kwargs: Any) -> dict[str, Any]:  # noqa: ARG002
        """Load data and nothing else."""
        return load_checkpoint(path)


class Checkpoints(pl.Callback):
    """Keeps ``checkpoints/last.ckpt`` and ``checkpoints/best.ckpt``.

    The last is written at each validation, every so many iterations and at the end of the run; the best when the
    monitored metric has improved.

    Args:
        save_dir: The run's folder.
        monitor: Metric that picks the best; smaller is better.
        every: Write the last checkpoint every so many iterations; null: at validations only.

    Raises:
        ConfigError: If ``every`` is below 1.
    """

    def __init__(self, *, save_dir: str, monitor: str = "val/loss", every: int | None = None) -> None:
        if every is not None and every < 1:
            raise ConfigError(f"callbacks.checkpoints.every must be at least 1 or null, not {every}.")
        self.folder, self.monitor, self.every = Path(save_dir) / "checkpoints", monitor, every
        self.best: dict[str, float] | None = None

    @property
    def last_path(self) -> Path:
        """Where the last state is."""
        return self.folder / "last.ckpt"

    @property
    def best_path(self) -> Path:
        """Where the best state is."""
        return self.folder / "best.ckpt"

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to know."""
        return {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` gave."""
        self.best = state_dict["best"]

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Method, *args: object) -> None:  # noqa: ARG002
        """Save the last state, if it is time."""
        if self.every is not None and trainer.global_step % self.every == 0:
            trainer.save_checkpoint(self.last_path)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Method) -> None:  # noqa: ARG002
        """Save the last state, and the best if this is it."""
        if trainer.sanity_checking or not trainer.training:
            return
        value = trainer.callback_metrics.get(self.monitor)
        if value is not None and (self.best is None or value.item() < self.best[self.monitor]):
            self.best = {self.monitor: value.item(), "iteration": trainer.global_step}
            trainer.save_checkpoint(self.best_path)
        trainer.save_checkpoint(self.last_path)

    def on_train_end(self, trainer: pl.Trainer, pl_module: Method) -> None:  # noqa: ARG002
        """Save the last state."""
        trainer.save_checkpoint(self.last_path)
