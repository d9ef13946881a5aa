"""The callback that saves the last checkpoint and the best one by validation, and on request earlier checkpoints."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any, Literal

import pytorch_lightning as pl
from pydantic import NonNegativeInt, PositiveInt

from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.base import Method
from eblvm_lit.training.callbacks.evaluation import Evaluation
from eblvm_lit.training.checkpoint_io import copy_checkpoint, load_checkpoint
from eblvm_lit.training.loggers.base import run_names
from eblvm_lit.utils.io import copy_whole
from eblvm_lit.utils.quantities import direction

__all__ = ["Checkpoints"]

log = logging.getLogger(__name__)


class Checkpoints(pl.Callback):
    """Saves ``checkpoints/last.ckpt`` and ``checkpoints/best.ckpt``; can also keep earlier checkpoints.

    The last checkpoint is written at each validation, after every ``every`` iterations and at the end of the run; the
    best one is written when the monitored metric has improved. Lightning's ModelCheckpoint loses the best checkpoint of
    a run that resumes in another folder, as each command does by default, and raises an error if a validation does not
    compute the monitored metric.

    Args:
        save_dir: The run's folder.
        monitor: The metric that chooses the best checkpoint.
        mode: ``min`` if the smallest value of the metric is the best, or ``max`` if it is the largest. With null,
            :func:`~eblvm_lit.utils.quantities.direction` decides.
        every: The number of iterations between two writes of the last checkpoint; null writes it only at validations.
        keep: The number of earlier checkpoints that are kept as ``checkpoints/iteration_<i>.ckpt``, the newest ones;
            null keeps all of them.

    Raises:
        ConfigError: When training starts, if ``mode`` is null and the direction of the metric is unknown.
    """

    def __init__(
        self,
        *,
        save_dir: str,
        monitor: str = "val/loss",
        mode: Literal["min", "max"] | None = None,
        every: PositiveInt | None = None,
        keep: NonNegativeInt | None = 0,
    ) -> None:
        self.sign = {"min": -1, "max": 1}.get(mode)
        self.folder = Path(save_dir) / "checkpoints"
        self.monitor = monitor
        self.every = every
        self.keep = keep
        self.last_path = self.folder / "last.ckpt"
        self.best_path = self.folder / "best.ckpt"
        self.best: dict[str, float] | None = None
        self.validation: dict[str, float] = {}

    def state_dict(self) -> dict[str, Any]:
        """Return the best value of the monitored metric so far and its iteration, which resumed runs need."""
        return {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the best value of the resumed run, if that run monitored the same metric."""
        best = state_dict["best"]
        self.best = best if best is not None and self.monitor in best else None

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: Method, checkpoint: dict[str, Any]) -> None:  # noqa: ARG002
        """Add the last validation's metrics to the checkpoint, and the names by which loggers resume their runs."""
        checkpoint["validation"] = dict(self.validation)
        checkpoint["loggers"] = run_names(trainer.loggers)

    def on_load_checkpoint(self, trainer: pl.Trainer, pl_module: Method, checkpoint: dict[str, Any]) -> None:  # noqa: ARG002
        """Restore the last validation's metrics, because a run that is already finished does not validate again."""
        self.validation = dict(checkpoint.get("validation", {}))

    def on_fit_start(self, trainer: pl.Trainer, pl_module: Method) -> None:  # noqa: ARG002
        """Determine whether higher or lower is better for the monitored metric, now that all metrics are built."""
        self.sign = self.sign or direction(self.monitor)
        if not self.sign:
            raise ConfigError(
                f"callbacks.checkpoints.monitor={self.monitor} needs callbacks.checkpoints.mode=min or max."
            )

    def on_fit_end(self, trainer: pl.Trainer, pl_module: Method) -> None:
        """Copy the checkpoints of the resumed run, even if no iterations were left to train."""
        self._take_over(trainer, pl_module)

    def _take_over(self, trainer: pl.Trainer, method: Method) -> None:
        """Copy the last and the best checkpoint of the resumed run into this run's folder; later calls do nothing.

        The copies have the configuration of this run, with which they are sampled and evaluated. This is called after
        the first minibatch, or at the end if no iteration is left, because until then checks may refuse the run.
        """
        if trainer.ckpt_path is None:
            return
        resumed = Path(trainer.ckpt_path)
        trainer.ckpt_path = None
        best = next(filter(self._is_best, (resumed.with_name("best.ckpt"), resumed)), None)
        if best is None and self.best is not None:
            log.warning(
                "The best checkpoint so far, of iteration %d, is missing: the best of later iterations is kept.",
                self.best["iteration"],
            )
            self.best = None
        for source, target in ((best, self.best_path), (resumed, self.last_path)):
            if trainer.is_global_zero and source is not None:
                copy_checkpoint(source, target, method.description)

    def _is_best(self, path: Path) -> bool:
        """Return whether a file is the best checkpoint so far.

        The file may hold a later checkpoint, if the run was resumed from an iteration before the best one.
        """
        if self.best is None or not path.is_file():
            return False
        found = load_checkpoint(path)
        here = found["eblvm_lit"]["iteration"] == self.best["iteration"]
        return here and found["callbacks"].get(self.state_key, {}).get("best") == self.best

    def _save(self, trainer: pl.Trainer, path: Path) -> None:
        for logger in trainer.loggers:
            logger.save()  # save the curves before the checkpoint, because a run that resumes from it reads the curves
        trainer.save_checkpoint(path, weights_only=False)

    def _save_last(self, trainer: pl.Trainer) -> None:
        """Save the last checkpoint, and keep copies of the latest ``keep`` checkpoints."""
        self._save(trainer, self.last_path)
        if self.keep == 0 or not trainer.is_global_zero:
            return
        copy_whole(self.last_path, self.folder / f"iteration_{trainer.global_step}.ckpt")
        kept = {path.stem.partition("_")[2]: path for path in self.folder.glob("iteration_*.ckpt")}
        known = {int(number): path for number, path in kept.items() if number.isdecimal()}  # ignore the user's files
        # checkpoints of later iterations are not removed, because they belong to an earlier, longer run
        earlier = sorted(i for i in known if i <= trainer.global_step)
        for i in earlier[: -self.keep] if self.keep else ():
            known[i].unlink()

    def _is_due(self, trainer: pl.Trainer) -> bool:
        return self.every is not None and trainer.global_step % self.every == 0

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Method, *args: object) -> None:  # noqa: ARG002
        """Save the last checkpoint if it is due, unless a validation follows.

        A run that is resumed from a checkpoint before a validation would skip this validation.
        """
        self._take_over(trainer, pl_module)
        validates = trainer.global_step % (trainer.val_check_batch * trainer.datamodule.iterations_per_batch) == 0
        if self._is_due(trainer) and not validates:
            self._save_last(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Method) -> None:  # noqa: ARG002
        """Save the last checkpoint, and the best one if the monitored metric has improved."""
        found = trainer.callback_metrics
        self.validation = {name: float(value) for name, value in found.items() if name.startswith("val/")}
        waiting = any(callback.waiting for callback in trainer.callbacks if isinstance(callback, Evaluation))
        if self.monitor not in self.validation and not waiting:
            raise ConfigError(f"callbacks.checkpoints.monitor={self.monitor}: validations give {', '.join(found)}.")
        value = self.validation.get(self.monitor, math.nan)
        if math.isfinite(value) and (self.best is None or self.sign * value > self.sign * self.best[self.monitor]):
            self.best = {self.monitor: value, "iteration": trainer.global_step}
            self._save(trainer, self.best_path)
        if self.every is None or self._is_due(trainer):
            self._save_last(trainer)
        else:
            self._save(trainer, self.last_path)

    def on_train_end(self, trainer: pl.Trainer, pl_module: Method) -> None:  # noqa: ARG002
        """Save the last checkpoint of the run."""
        self._save(trainer, self.last_path)
