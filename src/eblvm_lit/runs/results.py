"""The results of a run: the final metrics of its checkpoints, figures, and their files."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities import rank_zero_only

from eblvm_lit.errors import NonFiniteError
from eblvm_lit.runs.build import Parts
from eblvm_lit.training.callbacks.ema import ExponentialAverage
from eblvm_lit.training.callbacks.evaluation import Evaluation
from eblvm_lit.training.callbacks.figures import Figures
from eblvm_lit.training.callbacks.log_curves import LogCurves
from eblvm_lit.training.checkpoint_io import checkpoint_file, load_checkpoint, restore
from eblvm_lit.training.loggers.base import log_figures, log_results
from eblvm_lit.utils.io import write_json
from eblvm_lit.utils.quantities import FILE, quantity

__all__ = ["COSTS", "WEIGHTS", "as_best", "best_name", "estimators", "evaluated", "final_metrics", "write_results"]

COSTS = ("train/iterations_per_second", "train/peak_memory_mib")
# By eval_weights: what final metrics are of, in this order, and what stands before their names.
WEIGHTS = {"raw": {"raw": "test"}, "ema": {"ema": "test"}, "both": {"ema": "test_ema", "raw": "test"}}


def evaluated(which: str, weights: str, parts: Parts, trainer: pl.Trainer, folder: Path) -> dict[str, float]:
    """The final metrics of a trained run, and what its iterations cost.

    Args:
        which: ``last``, ``best`` or ``both``, the best ones under ``test_best/``.
        weights: As in :func:`final_metrics`.
        parts: The parts of the run.
        trainer: Its trainer.
        folder: That of the run; without callbacks.checkpoints, the present state of the method is tested.
    """
    if trainer.strategy.root_device.type == "cuda":
        parts.method.to(trainer.strategy.root_device)  # Lightning has moved it to the CPU, where samples take hours
    if "checkpoints" not in parts.callbacks:
        return final_metrics(parts, _unsaved(parts, trainer), folder, weights) | _costs(parts)
    files = {name: checkpoint_file(folder, name) for name in (("best", "last") if which == "both" else (which,))}
    # the last one at the end, because figures show it
    found = {name: final_metrics(parts, load_checkpoint(file), file, weights) for name, file in files.items()}
    best = as_best(found["best"]) if which == "both" else {}
    return found["best" if which == "best" else "last"] | best | _costs(parts)


def _unsaved(parts: Parts, trainer: pl.Trainer) -> dict[str, Any]:
    """What a checkpoint of the present state would hold."""
    state = {name: value.clone() for name, value in parts.method.state_dict().items()}
    content: dict[str, Any] = {"state_dict": state}
    for part in parts.callbacks.values():
        if isinstance(part, ExponentialAverage):
            part.on_save_checkpoint(trainer, parts.method, content)
    parts.method.on_save_checkpoint(content)
    found = trainer.callback_metrics.items()
    return {**content, "validation": {name: float(value) for name, value in found if name.startswith("val/")}}


def final_metrics(parts: Parts, checkpoint: Mapping[str, Any], path: Path, weights: str) -> dict[str, float]:
    """Compute the test metrics of a checkpoint; afterwards, the method holds the evaluated weights.

    The validation metrics beside them are those that the checkpoint holds: of the last validation before it was saved.

    Args:
        parts: The parts of the run.
        checkpoint: The content of the checkpoint.
        path: Its file.
        weights: ``raw`` (parameters), ``ema`` (averaged parameters) or ``both`` (the averages under ``test_ema/``).

    Raises:
        NonFiniteError: If a metric is not finite.
    """
    parts.data.setup()
    metrics: dict[str, float] = {}
    for kind, prefix in WEIGHTS[weights].items():
        iteration = restore(parts.method, checkpoint, path, kind)
        parts.method.eval()
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


def _costs(parts: Parts) -> dict[str, float]:
    """The iteration rate and the peak memory, if they were measured."""
    curves = [callback for callback in parts.callbacks.values() if isinstance(callback, LogCurves)]
    rates = [rate for callback in curves for rate in callback.rates]
    peaks = [callback.memory for callback in curves if callback.memory is not None]
    return ({COSTS[0]: median(rates)} if rates else {}) | ({COSTS[1]: max(peaks)} if peaks else {})


def estimators(parts: Parts) -> dict[str, str]:
    """How metrics are computed that can be computed in several ways, in words, by the metric's name without a split."""
    found: dict[str, str] = {}
    for callback in parts.callbacks.values():
        if isinstance(callback, Evaluation):
            found |= callback.describe(parts.method, parts.data)
    return found


@rank_zero_only
def write_results(path: Path, metrics: Mapping[str, float], parts: Parts, loggers: Sequence[Logger]) -> None:
    """Log the final metrics, draw the figures, and write the metrics at the end."""
    log_results(loggers, metrics, parts.method.description)
    of_metrics = {}
    for callback in parts.callbacks.values():
        if isinstance(callback, Evaluation):
            of_metrics |= callback.figures()
    for callback in parts.callbacks.values():
        if isinstance(callback, Figures):
            paths = callback.draw(parts.method, parts.data, of_metrics=of_metrics)
            log_figures(loggers, paths, int(metrics["iteration"]))
    write_json(path.with_name(FILE), {name: quantity(name) for name in metrics})
    write_json(path, metrics)
