"""train(cfg) and evaluate(cfg): what the command line does, as plain functions."""

from __future__ import annotations

import copy
import logging
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pytorch_lightning as pl
import torch
from hydra.errors import CompactHydraException
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.loggers import Logger

from eblvm_lit.callbacks.checkpoint_io import check_restorable, load_checkpoint
from eblvm_lit.callbacks.checkpoints import Checkpoints
from eblvm_lit.callbacks.curves import LogCurves
from eblvm_lit.callbacks.ema import ExponentialAverage
from eblvm_lit.callbacks.evaluation import Evaluation
from eblvm_lit.callbacks.figures import Figures
from eblvm_lit.callbacks.nonfinite import NonFiniteError
from eblvm_lit.callbacks.preemption import InterruptedRunError
from eblvm_lit.checks import EVALUATE_KEYS, check_config, check_keys
from eblvm_lit.composition import Parts, build, build_loggers, build_trainer
from eblvm_lit.console import prepare_folder, quiet, show_config, show_results
from eblvm_lit.environment import device_name, environment
from eblvm_lit.errors import ConfigError, EblvmError
from eblvm_lit.files import disk_errors, write_json, write_text
from eblvm_lit.job import Job, this_job
from eblvm_lit.launch import is_first, launched
from eblvm_lit.loggers.base import RunLogger, closing, of_runs
from eblvm_lit.precision import tf32, threads
from eblvm_lit.resume import find_checkpoint
from eblvm_lit.status import recorded
from eblvm_lit.stored_config import stored_config
from eblvm_lit.sweeps.jobs import earlier_checkpoint, earlier_metrics
from eblvm_lit.sweeps.launch import in_sweep
from eblvm_lit.weights import PREFIXES, load_weights

__all__ = ["evaluate", "main", "train"]

log = logging.getLogger(__name__)


def leave(path: Path, metrics: Mapping[str, float], parts: Parts, loggers: Sequence[Logger]) -> None:
    """Write the final metrics, draw the figures (some of them are of these metrics), tell loggers and print a table."""
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
    if (metrics := earlier_metrics(cfg)) is not None:
        return metrics
    if is_first():
        refuse_another_run(cfg, Path(cfg.run_dir))  # before anything is written to it
        prepare_folder(cfg.run_dir)
    with recorded(Path(cfg.run_dir)) as notes:
        return _train(cfg, notes)


def _train(cfg: DictConfig, notes: dict[str, Any]) -> dict[str, float]:
    """Train, and note what the run runs on."""
    check_config(cfg)
    folder = Path(cfg.run_dir)
    if is_first():
        if cfg.show_config:
            show_config(cfg)
        write_text(folder / "config.yaml", OmegaConf.to_yaml(cfg, resolve=True))
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
    resume_from = earlier_checkpoint(cfg) or find_checkpoint(cfg)
    trainer = build_trainer(cfg, parts)
    notes |= environment() | {"device": device_name(trainer.strategy.root_device)}
    notes["threads"] = cfg.threads or torch.get_num_threads()
    if resume_from is not None:
        go_on(parts, trainer, resume_from)
    with closing(trainer.loggers):
        begin(trainer.loggers, this_job("train"), parts.method.description)
        return _fit(cfg, parts, trainer, resume_from)


def begin(loggers: Sequence[Logger], job: Job, config: Mapping[str, Any]) -> None:
    """Tell loggers what begins."""
    for logger in of_runs(loggers):
        logger.begin(job, config)


def _fit(cfg: DictConfig, parts: Parts, trainer: pl.Trainer, resume_from: Path | None) -> dict[str, float]:
    """Run the iterations, and leave what is there to be left after them."""
    with launched(trainer.world_size, Path(cfg.run_dir)), tf32(cfg.get("tf32")):
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
    leave(Path(cfg.run_dir) / "metrics.json", metrics, parts, trainer.loggers)
    return metrics


def refuse_another_run(cfg: DictConfig, folder: Path) -> None:
    """A new run has a folder of its own, even where the clock that names folders was put back.

    Raises:
        ConfigError: If the folder holds the checkpoints of a run that this one does not go on with.
    """
    goes_on = cfg.ckpt is not None or OmegaConf.select(cfg, "sweep.resume")
    if not goes_on and (folder / "checkpoints" / "last.ckpt").is_file():
        raise ConfigError(
            f"{folder} holds a run already: go on with it by ckpt=last, or choose another folder by hydra.run.dir=... ."
        )


def go_on(parts: Parts, trainer: pl.Trainer, resume_from: Path) -> None:
    """Take over what an earlier part of the run has left.

    Raises:
        ConfigError: If the checkpoint is of another method, of other sizes, or beyond the end of this run.
    """
    checkpoint = load_checkpoint(resume_from)
    start = parts.method.check_resumable(checkpoint, resume_from)
    check_restorable(checkpoint, resume_from)
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
    for logger in of_runs(trainer.loggers):
        logger.go_on(checkpoint, resume_from)


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
    check_keys(cfg, EVALUATE_KEYS)
    checkpoint = load_checkpoint(cfg.ckpt)
    folder = prepare_folder(cfg.run_dir)
    stored = stored_config(checkpoint["eblvm_lit"]["config"], cfg)
    parts = build(stored)
    parts.method.check_resumable(checkpoint, Path(cfg.ckpt))
    loggers = build_loggers(cfg)
    for logger in loggers:
        if not isinstance(logger, RunLogger):
            raise ConfigError(f"logger={type(logger).__name__} logs training alone: use logger=csv, wandb or none.")
    with closing(loggers):
        begin(loggers, this_job("evaluate"), {**checkpoint["eblvm_lit"]["config"], "ckpt": str(cfg.ckpt)})
        with tf32(stored.get("tf32")):
            metrics = final_metrics(parts, checkpoint, stored.weights)
        leave(folder / "evaluation.json", metrics, parts, loggers)
    return metrics


def main(function: Callable[[DictConfig], dict[str, float]], cfg: DictConfig) -> float | None:
    """Run ``train`` or ``evaluate`` for the command line: one sentence and a non-zero exit for the user's errors.

    Returns:
        The metric named by ``cfg.optimized_metric``, for sweepers.
    """
    logging.raiseExceptions = False  # a log that cannot be written is no reason for a traceback
    try:
        with disk_errors():
            metrics = function(cfg)
        return _optimized(metrics, cfg.get("optimized_metric"))
    except EblvmError as error:
        log.error("%s", error)
        if in_sweep() and not isinstance(error, InterruptedRunError):
            if _in_grid(cfg):
                return None
            raise CompactHydraException(str(error)) from None  # the sweeper decides
        if in_sweep():
            log.error("The sweep goes on with the same command and sweep.resume=true.")
        sys.exit(getattr(error, "exit_code", 1))
    except KeyboardInterrupt:  # while nothing was trained
        log.error("Interrupted.")
        sys.exit(130)
    except Exception:
        if not _in_grid(cfg):
            raise
        log.exception("The job has failed; the others of the sweep still run.")
        return None
    finally:
        _close_wandb()


def _in_grid(cfg: DictConfig) -> bool:
    """Whether this is a job whose failure its status tells, and which the end of the sweep names beside all others."""
    return in_sweep() and "sweep" in cfg and cfg.get("optimized_metric") is None


def _optimized(metrics: Mapping[str, float], name: str | None) -> float | None:
    if name is not None and name not in metrics:
        raise ConfigError(f"optimized_metric={name}: this run has no such metric; it has {', '.join(metrics)}.")
    return None if name is None else metrics[name]


def _close_wandb() -> None:
    """Without this the next job of a multirun in this process would log into this job's run."""
    wandb = sys.modules.get("wandb")
    if wandb is not None and getattr(wandb, "run", None) is not None:
        wandb.finish()
