"""Compute the final metrics of a run's checkpoints, draw its figures, and write the files of the results."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities import rank_zero_only

from eblvm_lit.errors import NonFiniteError
from eblvm_lit.runs.build import Parts
from eblvm_lit.training.callbacks.evaluation import Evaluation
from eblvm_lit.training.callbacks.figures import Figures
from eblvm_lit.training.callbacks.log_curves import LogCurves
from eblvm_lit.training.checkpoint_io import checkpoint_file, load_checkpoint, restore
from eblvm_lit.training.loggers.base import log_figures, log_results
from eblvm_lit.utils.io import write_json
from eblvm_lit.utils.quantities import FILE, quantity

__all__ = ["COSTS", "WEIGHTS", "as_best", "best_name", "estimators", "evaluated", "final_metrics", "write_results"]

COSTS = ("train/iterations_per_second", "train/peak_memory_mib")
# For each value of eval_weights, the sets of parameters to evaluate, in this order, and the prefix of their metrics.
WEIGHTS = {"raw": {"raw": "test"}, "ema": {"ema": "test"}, "both": {"ema": "test_ema", "raw": "test"}}


def evaluated(which: str, weights: str, parts: Parts, trainer: pl.Trainer, folder: Path) -> dict[str, float]:
    """Compute the final metrics of a trained run, and the time and memory of its iterations.

    Args:
        which: The checkpoint that is evaluated: ``last``, ``best``, or ``both``, where the metrics of the best
            checkpoint are under ``test_best/``.
        weights: The parameters that are evaluated, as in :func:`final_metrics`.
        parts: The parts of the run.
        trainer: The trainer of the run.
        folder: The folder of the run.
    """
    if trainer.strategy.root_device.type == "cuda":
        # Lightning has moved the method to the CPU: move it back, because drawing samples on a CPU takes hours
        parts.method.to(trainer.strategy.root_device)
    files = {name: checkpoint_file(folder, name) for name in (("best", "last") if which == "both" else (which,))}
    # the last checkpoint is evaluated last, because figures show the parameters that are loaded at the end
    found = {name: final_metrics(parts, load_checkpoint(file), file, weights) for name, file in files.items()}
    best = as_best(found["best"]) if which == "both" else {}
    return found["best" if which == "best" else "last"] | best | _costs(parts)


def final_metrics(parts: Parts, checkpoint: Mapping[str, Any], path: Path, weights: str) -> dict[str, float]:
    """Restore the method from a checkpoint, and compute the method's test metrics.

    The validation metrics are copied from the checkpoint: they belong to the last validation before it was saved.

    Args:
        parts: The parts of the run.
        checkpoint: The content of the checkpoint.
        path: The file of the checkpoint, for messages.
        weights: ``raw`` (the parameters), ``ema`` (their moving averages) or ``both`` (those of the averages under
            ``test_ema/``).

    Raises:
        NonFiniteError: If a metric is not finite.
    """
    parts.data.setup()
    metrics: dict[str, float] = {}
    for kind, prefix in WEIGHTS[weights].items():
        iteration = restore(parts.method, checkpoint, path, kind)
        parts.method.eval()
        for evaluation in parts.callbacks_of(Evaluation):
            found = evaluation.test(parts.method, parts.data)
            metrics |= {prefix + name.removeprefix("test"): value for name, value in found.items()}
    metrics |= checkpoint.get("validation", {})
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise NonFiniteError(
                f"{name} is {value} at iteration {iteration}: the model has diverged, or cannot be normalised."
            )
    return {"iteration": iteration, **metrics}


def as_best(metrics: Mapping[str, float]) -> dict[str, float]:
    """Rename the metrics of the best checkpoint, for example ``test/fisher`` to ``test_best/fisher``.

    Example:
        >>> as_best({"iteration": 20, "test/fisher": -3.0, "test_ema/fisher": -4.0, "val/loss": 1.0})
        {'best_iteration': 20, 'test_best/fisher': -3.0, 'test_best_ema/fisher': -4.0, 'val_best/loss': 1.0}
    """
    return {best_name(name): value for name, value in metrics.items()}


def best_name(name: str) -> str:
    """Return the name under which a metric of the best checkpoint is reported, such as ``test_best/fisher``."""
    return "best_iteration" if name == "iteration" else re.sub(r"^(test|val)", r"\1_best", name)


def _costs(parts: Parts) -> dict[str, float]:
    """Return the median number of iterations per second and the peak memory of the run, if the run measured them."""
    curves = parts.callbacks_of(LogCurves)
    rates = [rate for callback in curves for rate in callback.rates]
    peaks = [callback.memory for callback in curves if callback.memory is not None]
    return ({COSTS[0]: median(rates)} if rates else {}) | ({COSTS[1]: max(peaks)} if peaks else {})


def estimators(parts: Parts) -> dict[str, str]:
    """Describe, for each metric that has several estimators, the estimator that is used.

    The keys of the returned dict are names of metrics without the split.
    """
    described = (evaluation.describe(parts.method, parts.data) for evaluation in parts.callbacks_of(Evaluation))
    return {name: how for part in described for name, how in part.items()}


@rank_zero_only
def write_results(path: Path, metrics: Mapping[str, float], parts: Parts, loggers: Sequence[Logger]) -> None:
    """Log the final metrics, draw the figures, and at the end write the metrics file, which marks a run as complete."""
    log_results(loggers, metrics, parts.method.description)
    drawn = (evaluation.figures().items() for evaluation in parts.callbacks_of(Evaluation))
    of_metrics = dict(chain.from_iterable(drawn))
    for figures in parts.callbacks_of(Figures):
        paths = figures.draw(parts.method, parts.data, of_metrics=of_metrics)
        log_figures(loggers, paths, int(metrics["iteration"]))
    write_json(path.with_name(FILE), {name: quantity(name)[:2] for name in metrics})
    write_json(path, metrics)
