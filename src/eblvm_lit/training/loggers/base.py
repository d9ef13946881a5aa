"""Functions that log figures and final metrics to all loggers of a run, and let the loggers continue resumed runs."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from pytorch_lightning.loggers import Logger, TensorBoardLogger
from pytorch_lightning.utilities import rank_zero_only

from eblvm_lit.training.loggers.csv import CSVCurves
from eblvm_lit.training.loggers.mlflow import MLFlowRun
from eblvm_lit.training.loggers.trackio import TrackioRun
from eblvm_lit.training.loggers.wandb import WandbRun

__all__ = ["figure_tag", "log_figures", "log_results", "logging_to", "resume_runs", "run_names", "upload_checkpoints"]

# Loggers whose runs have a name or an id, by which a resumed run continues them.
NAMED = (WandbRun, MLFlowRun, TrackioRun)


def figure_tag(path: Path, iteration: int) -> str:
    """Return the name under which a figure is logged, without the number of the iteration.

    Example:
        >>> figure_tag(Path("figures/density.png"), 600), figure_tag(Path("figures/density_000600.png"), 600)
        ('figures/density', 'figures/density')
    """
    return "figures/" + re.sub(rf"_0*{iteration}$", "", path.stem)


@rank_zero_only
def log_figures(loggers: Sequence[Logger], paths: Sequence[Path], iteration: int) -> None:
    """Log figures to all loggers that support images.

    Args:
        loggers: The loggers of the trainer.
        paths: The PNG files of the figures.
        iteration: The iteration at which they were drawn.
    """
    for logger in loggers:
        for path in paths:
            if hasattr(logger, "log_image"):
                logger.log_image(figure_tag(path, iteration), [str(path)], step=iteration)
            elif isinstance(logger, TensorBoardLogger):
                pixels = np.asarray(Image.open(path).convert("RGB"))
                logger.experiment.add_image(figure_tag(path, iteration), pixels, iteration, dataformats="HWC")
                # Lightning closes the logger before the last figures are logged, so they must be written here
                logger.experiment.flush()


def run_names(loggers: Sequence[Logger]) -> dict[str, Any]:
    """Return the names of the runs that the loggers have started, which :func:`resume_runs` needs."""
    return {type(logger).__name__: logger.version for logger in loggers if isinstance(logger, NAMED)}


def resume_runs(loggers: Sequence[Logger], names: Mapping[str, Any], folder: Path, iteration: int) -> None:
    """Let the loggers continue their earlier runs; call this function before anything is logged.

    Args:
        loggers: The loggers of the trainer.
        names: The result of :func:`run_names`, from the checkpoint.
        folder: The folder of the resumed run.
        iteration: The iteration at which it is resumed.
    """
    for logger in loggers:
        if isinstance(logger, CSVCurves):
            logger.resume(folder, iteration)
        elif isinstance(logger, NAMED):
            logger.resume(names.get(type(logger).__name__))


@contextmanager
def logging_to(loggers: Sequence[Logger], config: Mapping[str, Any] | None = None) -> Iterator[None]:
    """End the loggers' runs when the block exits, so that the next job in this process starts new runs.

    Args:
        loggers: The loggers of a run.
        config: The configuration of the run, which is logged first; None if it is logged elsewhere.
    """
    failed = True
    try:
        for logger in loggers if config is not None else ():
            logger.log_hyperparams(dict(config or {}))
        yield
        failed = False
    finally:
        for logger in loggers:
            if isinstance(logger, MLFlowRun):  # an evaluation has no trainer, which would end the run
                logger.finalize("failed" if failed else "success")
        if (wandb := sys.modules.get("wandb")) is not None and wandb.run is not None:
            wandb.finish(exit_code=int(failed))


@rank_zero_only
def upload_checkpoints(loggers: Sequence[Logger], folder: Path) -> None:
    """Upload the checkpoints in the folder of a run with each logger for which this is enabled."""
    for logger in loggers:
        if isinstance(logger, WandbRun) and logger.log_checkpoints:
            logger.upload_checkpoints(folder)


@rank_zero_only
def log_results(loggers: Sequence[Logger], metrics: Mapping[str, float], config: Mapping[str, Any]) -> None:
    """Log the final metrics; TensorBoard shows them with the configuration, under HPARAMS."""
    step = int(metrics["iteration"])
    final = {k: v for k, v in metrics.items() if k.startswith("test")}
    for logger in loggers:
        if isinstance(logger, TensorBoardLogger):
            logger.log_hyperparams(dict(config), final, step)
        else:
            logger.log_metrics(final, step)
        logger.save()
