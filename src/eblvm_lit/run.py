"""train(cfg) and evaluate(cfg): what the command line does, as plain functions."""

from __future__ import annotations

import copy
import json
import logging
import math
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import pytorch_lightning as pl
from hydra.core.hydra_config import HydraConfig
from hydra.errors import CompactHydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from eblvm_lit.callbacks.checkpoints import Checkpoints, load_checkpoint
from eblvm_lit.callbacks.curves import LogCurves
from eblvm_lit.callbacks.ema import ExponentialAverage
from eblvm_lit.callbacks.evaluation import Evaluation
from eblvm_lit.callbacks.figures import Figures
from eblvm_lit.callbacks.nonfinite import NonFiniteError
from eblvm_lit.callbacks.preemption import InterruptedRunError
from eblvm_lit.checks import check_config
from eblvm_lit.composition import Parts, build, build_trainer
from eblvm_lit.console import prepare_folder, quiet, show_config, show_results
from eblvm_lit.errors import ConfigError, EblvmError
from eblvm_lit.launch import is_first, launched
from eblvm_lit.loggers.csv import CSVCurves
from eblvm_lit.precision import tf32, threads
from eblvm_lit.resume import find_checkpoint
from eblvm_lit.stored_config import stored_config
from eblvm_lit.weights import PREFIXES, load_weights

__all__ = ["evaluate", "main", "train"]

log = logging.getLogger(__name__)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file as a whole."""
    partial = path.with_suffix(".tmp")
    partial.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
    os.replace(partial, path)


def leave(path: Path, metrics: Mapping[str, float], parts: Parts) -> None:
    """Write the final metrics, draw the figures (some of them are of these metrics) and print a table."""
    if not is_first():
        return
    write_json(path, metrics)
    for callback in parts.callbacks.values():
        if isinstance(callback, Figures):
            callback.draw(parts.method, parts.data)
    show_results(metrics, path.parent)


def final_metrics(parts: Parts, checkpoint: Mapping[str, Any], weights: str) -> dict[str, float]:
    """Metrics of a checkpoint on the test split; the method is left with the weights they are of.

    Args:
        parts: Of the run.
        checkpoint: Its content.
        weights: ``raw`` (the parameters), ``ema`` (their averages) or ``both``: these under ``test_ema/``, too.

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
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise NonFiniteError(
                f"{name} is {value} at iteration {iteration}: the model has diverged, or lacks a normaliser."
            )
    return {"iteration": iteration, **metrics}


def train(cfg: DictConfig) -> dict[str, float]:
    """Train as configured, evaluate the selected checkpoint, and leave everything in ``cfg.run_dir``.

    Args:
        cfg: As composed from ``conf/config.yaml``.

    Returns:
        The final metrics, which are also in ``metrics.json``.

    Raises:
        EblvmError: For everything the user can mend.
    """
    quiet()
    check_config(cfg)
    folder = Path(cfg.run_dir)
    if is_first():
        prepare_folder(folder)
        if cfg.show_config:
            show_config(cfg)
        OmegaConf.save(cfg, folder / "config.yaml", resolve=True)
    parts = build(cfg)
    if cfg.select in ("best", "both") and not any(isinstance(c, Checkpoints) for c in parts.callbacks.values()):
        raise ConfigError(f"select={cfg.select} needs callbacks.checkpoints, which keeps the best.")
    if cfg.weights != "raw" and not any(isinstance(c, ExponentialAverage) for c in parts.callbacks.values()):
        raise ConfigError(
            f"weights={cfg.weights} needs averages of the parameters: add callbacks=ema, or use weights=raw."
        )
    if is_first():  # others read what it has downloaded and decoded
        parts.data.setup()
    parts.method.description = OmegaConf.to_container(cfg, resolve=True)
    resume_from = find_checkpoint(cfg)
    trainer = build_trainer(cfg, parts)
    if resume_from is not None:
        go_on(parts, trainer, resume_from)
    with launched(trainer.world_size, folder), tf32(cfg.get("tf32")):
        with threads(cfg.threads):
            trainer.fit(parts.method, datamodule=parts.data, ckpt_path=resume_from, weights_only=True)
        best = {}
        if cfg.select == "both":  # the last one comes last: figures are of it
            best = _as_best(final_metrics(parts, _selected("best", parts, trainer), cfg.weights))
        which = "best" if cfg.select == "best" else "last"
        metrics = {**final_metrics(parts, _selected(which, parts, trainer), cfg.weights), **best}
    curves = [callback for callback in parts.callbacks.values() if isinstance(callback, LogCurves)]
    rates = [rate for callback in curves for rate in callback.rates]
    peaks = [callback.memory for callback in curves if callback.memory is not None]
    if rates:
        metrics["train/iterations_per_second"] = median(rates)
    if peaks:
        metrics["train/peak_memory_mib"] = max(peaks)
    for logger in trainer.loggers:
        logger.log_metrics({k: v for k, v in metrics.items() if k.startswith("test")}, step=metrics["iteration"])
        logger.save()
    leave(folder / "metrics.json", metrics, parts)
    return metrics


def go_on(parts: Parts, trainer: pl.Trainer, resume_from: Path) -> None:
    """Take over what an earlier part of the run has left.

    Raises:
        ConfigError: If the checkpoint is of another method, of other sizes, or beyond the end of this run.
    """
    checkpoint = load_checkpoint(resume_from)
    start = parts.method.check_resumable(checkpoint, resume_from)
    # Lightning loads before it converts: what is double there would be rounded
    parts.method.to(next(value.dtype for value in checkpoint["state_dict"].values() if value.is_floating_point()))
    if start > trainer.max_steps:
        raise ConfigError(
            f"{resume_from} is of iteration {start}, beyond trainer.max_steps={trainer.max_steps}: raise that, "
            "or evaluate the checkpoint with evaluate.py."
        )
    log.info("Going on from iteration %d of %s.", start, resume_from)
    for callback in parts.callbacks.values():
        if isinstance(callback, Checkpoints):
            callback.adopt(resume_from)
    earlier = resume_from.parent.parent / "metrics.csv"
    for logger in trainer.loggers:
        if isinstance(logger, CSVCurves) and earlier.is_file():
            logger.continue_from(earlier, start)


def _as_best(metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics of the best checkpoint beside those of the last: ``test_best/<metric>`` and ``best_iteration``."""
    renamed = {name.replace("test", "test_best", 1): value for name, value in metrics.items() if name != "iteration"}
    return {"best_iteration": metrics["iteration"], **renamed}


def _selected(which: str, parts: Parts, trainer: pl.Trainer) -> dict[str, Any]:
    """The checkpoint that is tested."""
    checkpoints = next((c for c in parts.callbacks.values() if isinstance(c, Checkpoints)), None)
    if which == "best" and checkpoints.best is None:  # as where it was lost before the run was gone on with
        raise ConfigError("select=best, but this run has left no best checkpoint: select=last.")
    if checkpoints is None:
        state = copy.deepcopy(parts.method.state_dict())  # what is evaluated may be put in the method's place
        unsaved = {"state_dict": state, "eblvm_lit": {"iteration": trainer.global_step}}
        for callback in parts.callbacks.values():
            if isinstance(callback, ExponentialAverage):
                callback.on_save_checkpoint(trainer, parts.method, unsaved)
        return unsaved
    return load_checkpoint(checkpoints.best_path if which == "best" else checkpoints.last_path)


def evaluate(cfg: DictConfig) -> dict[str, float]:
    """Evaluate a checkpoint on the test split: the metrics a run ends with, from the checkpoint alone.

    Args:
        cfg: As composed from ``conf/evaluate.yaml``: ``ckpt``, and what may differ from the run.

    Returns:
        The metrics, which are also in ``evaluation.json``.

    Raises:
        EblvmError: For everything the user can mend.
    """
    quiet()
    if OmegaConf.is_missing(cfg, "ckpt"):
        raise ConfigError("Which checkpoint? python evaluate.py ckpt=outputs/DATE/TIME/checkpoints/last.ckpt")
    checkpoint = load_checkpoint(cfg.ckpt)
    folder = prepare_folder(cfg.run_dir)
    stored = stored_config(checkpoint["eblvm_lit"]["config"], cfg)
    parts = build(stored)
    parts.method.check_resumable(checkpoint, Path(cfg.ckpt))
    with tf32(stored.get("tf32")):
        metrics = final_metrics(parts, checkpoint, stored.weights)
    leave(folder / "evaluation.json", metrics, parts)
    return metrics


def main(function: Callable[[DictConfig], dict[str, float]], cfg: DictConfig) -> float | None:
    """Run ``train`` or ``evaluate`` for the command line: one sentence and a non-zero exit for the user's errors.

    Returns:
        The metric named by ``cfg.optimized_metric``, for sweepers.
    """
    try:
        metrics = function(cfg)
        return _optimized(metrics, cfg.get("optimized_metric"))
    except EblvmError as error:
        log.error("%s", error)
        if _in_sweep() and not isinstance(error, InterruptedRunError):
            raise CompactHydraException(str(error)) from None  # the other jobs of the sweep still run
        sys.exit(getattr(error, "exit_code", 1))
    except KeyboardInterrupt:  # while nothing was trained
        log.error("Interrupted.")
        sys.exit(130)
    finally:
        _close_wandb()


def _in_sweep() -> bool:
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def _optimized(metrics: Mapping[str, float], name: str | None) -> float | None:
    if name is not None and name not in metrics:
        raise ConfigError(f"optimized_metric={name}: this run has no such metric; it has {', '.join(metrics)}.")
    return None if name is None else metrics[name]


def _close_wandb() -> None:
    """Without this the next job of a multirun in this process would log into this job's run."""
    wandb = sys.modules.get("wandb")
    if wandb is not None and getattr(wandb, "run", None) is not None:
        wandb.finish()
