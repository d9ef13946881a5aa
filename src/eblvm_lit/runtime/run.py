"""train(cfg) and evaluate(cfg): what the command line does, as plain functions."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.loggers import Logger

from eblvm_lit.callbacks.checkpoint_io import check_restorable, load_checkpoint
from eblvm_lit.callbacks.checkpoints import Checkpoints
from eblvm_lit.callbacks.ema import ExponentialAverage
from eblvm_lit.distributed.launch import is_first, launched
from eblvm_lit.errors import ConfigError
from eblvm_lit.loggers.base import RunLogger, closing, of_runs
from eblvm_lit.methods.checkpoint_weights import check_resumable
from eblvm_lit.runtime.build import Parts, build, build_loggers, build_trainer
from eblvm_lit.runtime.checkpoint_config import stored_config
from eblvm_lit.runtime.console import prepare_folder, quiet, show_config
from eblvm_lit.runtime.provenance import Job, device_name, environment, this_job
from eblvm_lit.runtime.results import as_best, costs, final_metrics, leave, selected
from eblvm_lit.runtime.resume import find_checkpoint
from eblvm_lit.runtime.status import recorded
from eblvm_lit.runtime.sweeps.jobs import earlier_checkpoint, earlier_metrics
from eblvm_lit.runtime.validate import EVALUATE_KEYS, check_config, check_keys, drop_unread
from eblvm_lit.utils.io import write_text
from eblvm_lit.utils.memory import keep_freed_cpu_memory
from eblvm_lit.utils.torch_settings import tf32, threads

__all__ = ["evaluate", "train"]

log = logging.getLogger(__name__)


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
    drop_unread(cfg)
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
    kinds = {type(callback) for callback in parts.callbacks.values()}
    if cfg.test_checkpoint in ("best", "both") and Checkpoints not in kinds:
        raise ConfigError(f"test_checkpoint={cfg.test_checkpoint} needs callbacks.checkpoints, which keeps the best.")
    if cfg.eval_weights != "raw" and ExponentialAverage not in kinds:
        raise ConfigError(
            f"eval_weights={cfg.eval_weights} needs averages of the parameters: add callbacks=ema, or use "
            "eval_weights=raw."
        )
    if is_first():  # others read what it has downloaded and decoded
        parts.data.setup()
    parts.method.description = OmegaConf.to_container(cfg, resolve=True)
    resume_from = earlier_checkpoint(cfg) or find_checkpoint(cfg)
    trainer = build_trainer(cfg, parts)
    notes |= environment() | {"device": device_name(trainer.strategy.root_device)}
    notes["threads"] = cfg.threads or torch.get_num_threads()
    if resume_from is not None:
        resume(parts, trainer, resume_from)
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
        on_cpu = trainer.strategy.root_device.type == "cpu"
        with threads(cfg.threads), keep_freed_cpu_memory(on_cpu and cfg.get("keep_freed_cpu_memory", True)):
            trainer.fit(parts.method, datamodule=parts.data, ckpt_path=resume_from, weights_only=True)
        best = {}
        if cfg.test_checkpoint == "both":  # the last one comes last: figures are of it
            best = as_best(final_metrics(parts, selected("best", parts, trainer), cfg.eval_weights))
        which = "best" if cfg.test_checkpoint == "best" else "last"
        metrics = {**final_metrics(parts, selected(which, parts, trainer), cfg.eval_weights), **best, **costs(parts)}
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


def resume(parts: Parts, trainer: pl.Trainer, resume_from: Path) -> None:
    """Take over what an earlier part of the run has left.

    Raises:
        ConfigError: If the checkpoint is of another method, of other sizes, or beyond the end of this run.
    """
    checkpoint = load_checkpoint(resume_from)
    start = check_resumable(parts.method, checkpoint, resume_from)
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
        logger.resume(checkpoint, resume_from)


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
    check_resumable(parts.method, checkpoint, Path(cfg.ckpt))
    loggers = build_loggers(cfg)
    for logger in loggers:
        if not isinstance(logger, RunLogger):
            raise ConfigError(f"logger={type(logger).__name__} logs training alone: use logger=csv, wandb or none.")
    with closing(loggers):
        begin(loggers, this_job("evaluate"), {**checkpoint["eblvm_lit"]["config"], "ckpt": str(cfg.ckpt)})
        with tf32(stored.get("tf32")):
            metrics = final_metrics(parts, checkpoint, stored.eval_weights)
        leave(folder / "evaluation.json", metrics, parts, loggers)
    return metrics
