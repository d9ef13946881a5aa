"""The callback that saves checkpoints: the last, the best by validation, and earlier ones on request."""

from __future__ import annotations

import logging
import math
import os
from pathlib import Path
from typing import Any, Literal

import pytorch_lightning as pl

from eblvm_lit.core.ranks import gather_objects
from eblvm_lit.errors import ConfigError, DataError
from eblvm_lit.evaluation.directions import direction
from eblvm_lit.methods.base import Method
from eblvm_lit.training.callbacks.evaluation import Evaluation
from eblvm_lit.training.callbacks.group import each
from eblvm_lit.training.checkpoint_io import AtomicCheckpointIO, load_checkpoint
from eblvm_lit.training.loggers.base import of_runs
from eblvm_lit.training.processes import is_first
from eblvm_lit.utils.io import copy_whole, replacing
from eblvm_lit.utils.tensor_files import check_tensors

__all__ = ["AtomicCheckpointIO", "Checkpoints", "load_checkpoint", "validation_metrics"]

log = logging.getLogger(__name__)


def validation_metrics(trainer: pl.Trainer) -> dict[str, float]:
    """The values of the last validation, as ``val/<metric>``."""
    found = trainer.callback_metrics.items()
    return {name: float(value) for name, value in found if name.startswith("val/")}


def _check_readable(content: dict[str, Any], method: Method) -> None:
    """Refuse what a checkpoint would hold and nobody could read: it is read as data, so that it runs no code.

    Raises:
        ConfigError: Names the entry.
    """
    if "eblvm_lit" not in content:
        raise ConfigError(
            f"{type(method).__name__}.on_save_checkpoint must call super().on_save_checkpoint(checkpoint)."
        )
    try:
        check_tensors(content, on_cpu=False)
    except ValueError as error:
        hint = ""
        if content["hyper_parameters"]:
            hint = " Leave out save_hyperparameters(): checkpoints hold the configuration of the run."
        raise ConfigError(
            f"A checkpoint of this run could not be read, as it would hold more than numbers, texts and dense tensors: "
            f"{error}.{hint}"
        ) from None


class Checkpoints(pl.Callback):
    """Keeps ``checkpoints/last.ckpt`` and ``checkpoints/best.ckpt``, and on request some earlier ones.

    The last is written at each validation, every so many iterations and at the end of the run; the best when the
    monitored metric has improved, at the validations that compute it. Each checkpoint holds the values of the last
    validation, under ``validation``. The room on the disk is checked before the first iteration.

    Args:
        save_dir: The run's folder.
        monitor: Metric that picks the best.
        mode: ``min`` or ``max``, whether the smallest or the largest value is the best; null: as
            :func:`~eblvm_lit.evaluation.directions.direction` says.
        every: Write the last checkpoint every so many iterations; null: at validations only.
        keep: How many earlier last checkpoints are kept, the newest ones, as ``checkpoints/iteration_<i>.ckpt``; null
            keeps all of them.

    Raises:
        ConfigError: If ``every`` is below 1 or ``keep`` below 0, or without a mode for a metric of unknown direction.
        DataError: When training starts, if the disk has no room for them. ConfigError, if they could not be read.
    """

    def __init__(
        self,
        *,
        save_dir: str,
        monitor: str = "val/loss",
        mode: Literal["min", "max"] | None = None,
        every: int | None = None,
        keep: int | None = 0,
    ) -> None:
        if every is not None and every < 1:
            raise ConfigError(f"callbacks.checkpoints.every must be at least 1 or null, not {every}.")
        if keep is not None and keep < 0:
            raise ConfigError(f"callbacks.checkpoints.keep must be at least 0 or null, not {keep}.")
        signs = {"min": -1, "max": 1, None: direction(monitor)}
        if not signs.get(mode):
            raise ConfigError(
                f"callbacks.checkpoints.monitor={monitor}: say by callbacks.checkpoints.mode=min or max which value is "
                f"the best, not mode={mode}."
            )
        self.sign = signs[mode]
        self.folder, self.monitor, self.every, self.keep = Path(save_dir) / "checkpoints", monitor, every, keep
        self.best: dict[str, float] | None = None
        self.validation: dict[str, float] = {}

    @property
    def last_path(self) -> Path:
        """Path of the last checkpoint."""
        return self.folder / "last.ckpt"

    @property
    def best_path(self) -> Path:
        """Path of the best checkpoint."""
        return self.folder / "best.ckpt"

    def state_dict(self) -> dict[str, Any]:
        """The state that a resumed run needs."""
        return {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of :meth:`state_dict`.

        Raises:
            DataError: It is damaged, or of another metric.
        """
        best = state_dict.get("best", ()) if isinstance(state_dict, dict) else ()
        fits = isinstance(best, dict) and set(best) == {self.monitor, "iteration"}
        if best is not None and not (fits and all(type(value) in (int, float) for value in best.values())):
            raise DataError(
                f"The checkpoint does not say which one was the best by {self.monitor}: resume with the same "
                "callbacks.checkpoints.monitor, or start a new run."
            )
        self.best = best

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: Method, checkpoint: dict[str, Any]) -> None:  # noqa: ARG002
        """Add the values of the last validation, and the loggers' run ids, with which a resumed run is the same run."""
        checkpoint["validation"] = dict(self.validation)
        if known := {logger.name: logger.version for logger in of_runs(trainer.loggers) if logger.version}:
            checkpoint["loggers"] = known

    def on_load_checkpoint(self, trainer: pl.Trainer, pl_module: Method, checkpoint: dict[str, Any]) -> None:  # noqa: ARG002
        """Restore the values of the last validation: a run that resumes at its end has no further one."""
        self.validation = dict(checkpoint.get("validation", {}))

    def adopt(self, resume_from: Path, state: dict[str, Any] | None) -> None:
        """Copy the checkpoints of the resumed run, so that this run's folder is complete from the start.

        Args:
            resume_from: The checkpoint from which this run resumes. The best one up to it may be ``best.ckpt`` in the
                same folder, or itself. If the earlier run went on, its ``best.ckpt`` may be of a later iteration.
            state: Of this callback, as the checkpoint has it.

        Raises:
            DataError: The state is damaged, or of another metric.
        """
        if not is_first():
            return
        if state is not None:
            self.load_state_dict(state)
        for best in (resume_from.with_name("best.ckpt"), resume_from):
            if self._is_best(best):
                if best.resolve() != self.best_path.resolve():
                    copy_whole(best, self.best_path)
                break
        if resume_from.resolve() != self.last_path.resolve():
            copy_whole(resume_from, self.last_path)

    def _is_best(self, path: Path) -> bool:
        """Whether a file holds the best checkpoint so far."""
        if self.best is None or not path.is_file():
            return False
        try:
            content = load_checkpoint(path)
        except DataError:
            return False
        value = content.get("validation", {}).get(self.monitor, self.best[self.monitor])
        return {self.monitor: value, "iteration": content["eblvm_lit"]["iteration"]} == self.best

    def on_fit_start(self, trainer: pl.Trainer, pl_module: Method) -> None:  # noqa: ARG002
        """Forget the best so far if its checkpoint is missing."""
        if self.best is not None and not gather_objects(is_first() and self._is_best(self.best_path))[0]:
            log.warning(
                "The best checkpoint so far, of iteration %d, is gone: the best from here on is kept.",
                self.best["iteration"],
            )
            self.best = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: Method) -> None:
        """Check that checkpoints will be readable."""
        if not trainer.is_global_zero:
            return
        content: dict[str, Any] = {"state_dict": pl_module.state_dict(), "hyper_parameters": dict(pl_module.hparams)}
        content["callbacks"] = {callback.state_key: callback.state_dict() for callback in trainer.callbacks}
        for part in trainer.callbacks:  # for example averages of the parameters
            part.on_save_checkpoint(trainer, pl_module, content)
        pl_module.on_save_checkpoint(content)
        _check_readable(content, pl_module)

    def _kept(self, iteration: int) -> list[Path]:
        """The earlier checkpoints, the oldest first; not those that a run left which was ahead of this iteration."""
        found = {}
        for path in self.folder.glob("iteration_*.ckpt"):
            number = path.stem.removeprefix("iteration_")
            if number.isdecimal() and int(number) <= iteration:
                found[int(number)] = path
        return [found[number] for number in sorted(found)]

    def _save(self, trainer: pl.Trainer, path: Path) -> None:
        for logger in trainer.loggers:
            logger.save()  # first: a run that resumes from here reads the curves up to here
        trainer.save_checkpoint(path, weights_only=False)

    def _save_last(self, trainer: pl.Trainer) -> None:
        """Save the last state; if some are kept, as an earlier one before that.

        A run that is killed in between repeats the iterations since the last one, and these files.
        """
        if self.keep == 0:
            self._save(trainer, self.last_path)
            return
        path = self.folder / f"iteration_{trainer.global_step}.ckpt"
        self._save(trainer, path)
        if not trainer.is_global_zero:
            return
        for old in self._kept(trainer.global_step)[: -self.keep] if self.keep else ():
            old.unlink(missing_ok=True)
        try:
            with replacing(self.last_path) as partial:
                os.link(path, partial)  # a link suffices: the next checkpoint is a new file
        except OSError:  # a disk without links
            copy_whole(path, self.last_path)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Method, *args: object) -> None:  # noqa: ARG002
        """Save the last state, if it is due; not before a validation, which a resumed run would skip."""
        validated = trainer.global_step % (trainer.val_check_batch * trainer.datamodule.iterations_per_batch) == 0
        if self._is_time(trainer) and not validated:
            self._save_last(trainer)

    def _is_time(self, trainer: pl.Trainer) -> bool:
        return self.every is not None and trainer.global_step % self.every == 0

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Method) -> None:  # noqa: ARG002
        """Save the last state, and the best if this is it."""
        self.validation = validation_metrics(trainer)
        if self.monitor in trainer.callback_metrics:
            self._compare(trainer, trainer.callback_metrics[self.monitor].item())
        elif not any(callback.waiting for callback in each(trainer.callbacks) if isinstance(callback, Evaluation)):
            raise ConfigError(
                f"callbacks.checkpoints.monitor={self.monitor}: validations give {', '.join(trainer.callback_metrics)}."
            )
        if self.every is None or self._is_time(trainer):
            self._save_last(trainer)
        else:
            self._save(trainer, self.last_path)

    def _compare(self, trainer: pl.Trainer, value: float) -> None:
        """Save the best if this is it."""
        if math.isfinite(value) and (self.best is None or self.sign * value > self.sign * self.best[self.monitor]):
            self.best = {self.monitor: value, "iteration": trainer.global_step}
            self._save(trainer, self.best_path)

    def on_train_end(self, trainer: pl.Trainer, pl_module: Method) -> None:  # noqa: ARG002
        """Save the last state."""
        self._save(trainer, self.last_path)
