"""Checkpoints: the last state, and the best by validation."""

from __future__ import annotations

import logging
import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.io import TorchCheckpointIO

from eblvm_lit.errors import ConfigError, DataError
from eblvm_lit.launch import is_first
from eblvm_lit.methods.base import Method

__all__ = ["AtomicCheckpointIO", "Checkpoints", "load_checkpoint"]

log = logging.getLogger(__name__)

# What a checkpoint of ours holds beside Lightning's own things, and of which type.
KEYS = {"method": str, "iteration": int, "config": dict}


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
    ours = checkpoint.get("eblvm_lit") if isinstance(checkpoint, dict) else None
    if not isinstance(ours, dict) or not isinstance(checkpoint.get("state_dict"), dict):
        raise DataError(f"{path} is not a checkpoint of eblvm_lit: it lacks state_dict or eblvm_lit.")
    for key, kind in KEYS.items():
        if not isinstance(ours.get(key), kind):
            raise DataError(f"{path} is not a checkpoint of eblvm_lit: its {key} is missing or damaged.")
    return checkpoint


def _copy(source: Path, target: Path) -> None:
    """Copy a file as a whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".tmp")
    shutil.copyfile(source, partial)
    os.replace(partial, target)


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
            raise DataError(
                f"The checkpoint {path} could not be written ({error}); earlier ones are intact."
            ) from error

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

    def adopt(self, resume_from: Path) -> None:
        """Take over the checkpoints of the run that is gone on from, so that this run's folder is complete at once.

        Args:
            resume_from: The checkpoint this run starts with; a ``best.ckpt`` may lie beside it.
        """
        if not is_first():
            return
        best = resume_from.with_name("best.ckpt")
        if resume_from.resolve() != self.last_path.resolve():
            _copy(resume_from, self.last_path)
        if best.is_file() and best.resolve() != self.best_path.resolve():
            _copy(best, self.best_path)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: Method) -> None:  # noqa: ARG002
        """The best so far counts only where its parameters are at hand."""
        if self.best is not None and not self.best_path.is_file():
            log.warning("The best checkpoint of the earlier run is gone: the best from here on is kept.")
            self.best = None

    def _save(self, trainer: pl.Trainer, path: Path) -> None:
        for logger in trainer.loggers:
            logger.save()  # first: a run that goes on from here takes over the curves up to here
        trainer.save_checkpoint(path, weights_only=False)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Method, *args: object) -> None:  # noqa: ARG002
        """Save the last state, if it is time; not before a validation, which a run that goes on would leave out."""
        validated = trainer.global_step % (trainer.val_check_batch * trainer.datamodule.block) == 0
        if self.every is not None and trainer.global_step % self.every == 0 and not validated:
            self._save(trainer, self.last_path)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Method) -> None:  # noqa: ARG002
        """Save the last state, and the best if this is it."""
        if self.monitor not in trainer.callback_metrics:
            raise ConfigError(
                f"callbacks.checkpoints.monitor={self.monitor}: validations give {', '.join(trainer.callback_metrics)}."
            )
        value = trainer.callback_metrics[self.monitor].item()
        if math.isfinite(value) and (self.best is None or value < self.best[self.monitor]):
            self.best = {self.monitor: value, "iteration": trainer.global_step}
            self._save(trainer, self.best_path)
        self._save(trainer, self.last_path)

    def on_train_end(self, trainer: pl.Trainer, pl_module: Method) -> None:  # noqa: ARG002
        """Save the last state."""
        self._save(trainer, self.last_path)
