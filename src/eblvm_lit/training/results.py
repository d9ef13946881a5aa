"""The results of a run: final metrics of a checkpoint, figures, and their files."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.loggers import Logger

from eblvm_lit.cli.build import Parts
from eblvm_lit.cli.console import show_results
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.checkpoint_weights import PREFIXES, load_weights
from eblvm_lit.training.callbacks.checkpoints import Checkpoints, validation_metrics
from eblvm_lit.training.callbacks.ema import ExponentialAverage
from eblvm_lit.training.callbacks.evaluation import Evaluation
from eblvm_lit.training.callbacks.figures import Figures
from eblvm_lit.training.callbacks.log_curves import LogCurves
from eblvm_lit.training.callbacks.nonfinite import NonFiniteError
from eblvm_lit.training.checkpoint_io import load_checkpoint
from eblvm_lit.training.loggers.base import of_runs
from eblvm_lit.training.processes import is_first
from eblvm_lit.utils.io import write_json

__all__ = [
    "COSTS",
    "as_best",
    "best_name",
    "costs",
    "estimators",
    "final_metrics",
    "tested_checkpoint",
    "write_results",
]

COSTS = ("train/iterations_per_second", "train/peak_memory_mib")


def tested_checkpoint(which: str, parts: Parts, trainer: pl.Trainer) -> dict[str, Any]:
    """The content of the best or the last checkpoint; without checkpoint files, the present state of the method."""
    checkpoints = next((c for c in parts.callbacks.values() if isinstance(c, Checkpoints)), None)
    if which == "best" and checkpoints.best is None:  # for example if it was lost before the run was resumed
        raise ConfigError("test_checkpoint=best, but this run has no best checkpoint: use test_checkpoint=last.")
    if checkpoints is None:
        state = copy.deepcopy(parts.method.state_dict())  # evaluation may load other weights into the method
        unsaved = {"state_dict": state, "eblvm_lit": {"iteration": trainer.global_step}}
        unsaved["validation"] = validation_metrics(trainer)
        for callback in parts.callbacks.values():
            if isinstance(callback, ExponentialAverage):
                callback.on_save_checkpoint(trainer, parts.method, unsaved)
        return unsaved
    return load_checkpoint(checkpoints.best_path if which == "best" else checkpoints.last_path)


def final_metrics(parts: Parts, checkpoint: Mapping[str, Any], weights: str) -> dict[str, float]:
    """Compute the test metrics of a checkpoint; afterwards, the method holds the evaluated weights.

    The validation metrics beside them are those that the checkpoint holds: of the last validation before it was saved.

    Args:
        parts: The parts of the run.
        checkpoint: The content of the checkpoint.
        weights: ``raw`` (parameters), ``ema`` (averaged parameters) or ``both`` (the averages under ``test_ema/``).

    Raises:
        NonFiniteError: If a metric is not finite.
    """
    state, iteration = checkpoint["state_dict"], checkpoint["eblvm_lit"]["iteration"]
    parts.method.to(next(value.dtype for value in state.values() if value.is_floating_point()))
    parts.method.eval()
    parts.data.setup()
    metrics: dict[str, float] = {}
    for kind, prefix in PREFIXES[weights].items():
        load_weights(parts.method, checkpoint, kind)
        for callback in parts.callbacks.values():
            if isinstance(callback, Evaluation):
                found = callback.test(parts.method, parts.data)
                metrics |= {prefix + name.removeprefix("test"): value for name, value in found.items()}
    metrics |= checkpoint.get("validation", {})
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise NonFiniteError(
                f"{name} is {value} at iteration {iteration}: the model has diverged, or lacks a normaliser."
            )
    return {"iteration": iteration, **metrics}


def as_best(metrics: Mapping[str, float]) -> dict[str, float]:
    """Rename metrics to those of the best checkpoint.

    Example:
        >>> as_best({"iteration": 20, "test/fisher": -3.0, "test_ema/fisher": -4.0, "val/loss": 1.0})
        {'best_iteration': 20, 'test_best/fisher': -3.0, 'test_best_ema/fisher': -4.0, 'val_best/loss': 1.0}
    """
    return {best_name(name): value for name, value in metrics.items()}


def best_name(name: str) -> str:
    """The name of a metric of the best checkpoint, where the last one is tested, too."""
    return "best_iteration" if name == "iteration" else re.sub(r"^(test|val)", r"\1_best", name)


def costs(parts: Parts) -> dict[str, float]:
    """The iteration rate and the peak memory, if they were measured."""
    curves = [callback for callback in parts.callbacks.values() if isinstance(callback, LogCurves)]
    rates = [rate for callback in curves for rate in callback.rates]
    peaks = [callback.memory for callback in curves if callback.memory is not None]
    found = {COSTS[0]: median(rates)} if rates else {}
    return found | ({COSTS[1]: max(peaks)} if peaks else {})


def estimators(parts: Parts) -> dict[str, str]:
    """How metrics are computed that can be computed in several ways, in words, by the metric's name without a split."""
    found: dict[str, str] = {}
    for callback in parts.callbacks.values():
        if isinstance(callback, Evaluation):
            found |= callback.describe(parts.method, parts.data)
    return found


def write_results(path: Path, metrics: Mapping[str, float], parts: Parts, loggers: Sequence[Logger]) -> None:
    """Write the final metrics, draw the figures (some show these metrics), notify the loggers and print a table."""
    if not is_first():
        return
    for logger in loggers:
        logger.log_metrics({k: v for k, v in metrics.items() if k.startswith("test")}, step=metrics["iteration"])
        logger.save()
    write_json(path, metrics)
    checkpoints: list[Path] = []
    for callback in parts.callbacks.values():
        if isinstance(callback, Figures):
            figures = callback.draw(parts.method, parts.data)
            for logger in of_runs(loggers):
                logger.log_figures(figures, metrics["iteration"])
        if isinstance(callback, Checkpoints):
            checkpoints = [file for file in (callback.last_path, callback.best_path) if file.is_file()]
    for logger in of_runs(loggers):
        logger.conclude(metrics, checkpoints)
    show_results(metrics, path.parent, estimators(parts))
