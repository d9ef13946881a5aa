"""The functions train(cfg) and evaluate(cfg), which the command line and the tests call."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.loggers import Logger

from eblvm_lit.cli.adapt import adapt
from eblvm_lit.cli.build import Parts, build, build_loggers, build_trainer, n_processes
from eblvm_lit.cli.checkpoint_config import stored_config
from eblvm_lit.cli.console import prepare_folder, quiet, show_config
from eblvm_lit.cli.instantiate import LIGHTNING
from eblvm_lit.cli.start_screen import show_next_steps, show_start
from eblvm_lit.cli.sweeps.jobs import earlier_checkpoint, earlier_metrics
from eblvm_lit.cli.validate import EVALUATE_KEYS, check_config, check_keys, check_types, drop_unread
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.checkpoint_weights import check_resumable, make_room
from eblvm_lit.training.callbacks.checkpoints import Checkpoints
from eblvm_lit.training.callbacks.ema import ExponentialAverage
from eblvm_lit.training.callbacks.group import state_in
from eblvm_lit.training.checkpoint_io import check_restorable, load_checkpoint
from eblvm_lit.training.forecast import warn_of_counts, warn_of_days
from eblvm_lit.training.lightning_errors import lightning_errors
from eblvm_lit.training.loggers.base import RunLogger, closing, of_runs
from eblvm_lit.training.precision import AUTO, choose_precision, stored_precision
from eblvm_lit.training.processes import check_launch, is_first, run_in_processes, started_outside
from eblvm_lit.training.provenance import Job, this_job
from eblvm_lit.training.results import as_best, costs, final_metrics, tested_checkpoint, write_results
from eblvm_lit.training.resume import check_settings, find_checkpoint
from eblvm_lit.utils.io import write_text
from eblvm_lit.utils.memory import keep_freed_cpu_memory, within_memory
from eblvm_lit.utils.torch_settings import find_device, flush_subnormals, tf32, threads

__all__ = ["evaluate", "train"]

log = logging.getLogger(__name__)


def train(cfg: DictConfig) -> dict[str, float]:
    """Train, evaluate the selected checkpoint, and write all results to ``cfg.run_dir``.

    Args:
        cfg: The configuration composed from ``conf/config.yaml``.

    Returns:
        The final metrics, which are also in ``metrics.json``.

    Raises:
        EblvmError: For everything the user can correct.
    """
    quiet()
    check_types(cfg)
    drop_unread(cfg)
    if cfg.sweep.resume:
        adapt(cfg)  # the configuration that an earlier start has stored was adapted, too
    if (metrics := earlier_metrics(cfg)) is not None:
        return metrics
    if (n := n_processes(cfg)) > 1:
        check_launch(cfg.trainer.num_nodes)
        if not started_outside():
            prepare(cfg)
            return run_in_processes(n, run, cfg)
    return run(cfg)


def run(cfg: DictConfig) -> dict[str, float]:
    """Train in this process, which may be one of several."""
    quiet()
    folder = Path(cfg.run_dir)
    if is_first():
        refuse_another_run(cfg, folder)  # before anything is written
        prepare_folder(folder)
        (folder / "metrics.json").unlink(missing_ok=True)  # it says that the run has finished
        for leftover in folder.rglob(".*.tmp"):  # of a process that was killed while it wrote
            leftover.unlink()
    with within_memory():
        return _train(cfg)


@lightning_errors()
def prepare(cfg: DictConfig) -> None:
    """Check the configuration once for all processes, download and decode the data, and choose the precision."""
    check_config(cfg)
    adapt(cfg)
    parts = build(cfg, LIGHTNING)
    parts.data.setup()
    if cfg.trainer.precision == AUTO:
        cfg.trainer.precision = choose_precision(cfg, parts, earlier_checkpoint(cfg) or find_checkpoint(cfg))


@lightning_errors()
def _train(cfg: DictConfig) -> dict[str, float]:
    check_config(cfg)
    adapt(cfg)
    folder = Path(cfg.run_dir)
    if is_first():
        if cfg.show_config:
            show_config(cfg)
        write_text(folder / "config.yaml", OmegaConf.to_yaml(cfg, resolve=True))
    if is_first():
        warn_of_counts(cfg)
    parts = build(cfg, LIGHTNING)
    kinds = {type(callback) for callback in parts.callbacks.values()}
    if cfg.test_checkpoint in ("best", "both") and Checkpoints not in kinds:
        raise ConfigError(f"test_checkpoint={cfg.test_checkpoint} needs callbacks.checkpoints, which keeps the best.")
    if cfg.eval_weights != "raw" and ExponentialAverage not in kinds:
        raise ConfigError(
            f"eval_weights={cfg.eval_weights} needs averages of the parameters: add callbacks=ema, or use "
            "eval_weights=raw."
        )
    if is_first():  # the first process downloads and decodes for all
        parts.data.setup()
    resume_from = earlier_checkpoint(cfg) or find_checkpoint(cfg)
    if cfg.trainer.precision == AUTO:
        cfg.trainer.precision = choose_precision(cfg, parts, resume_from)
        if is_first():
            write_text(folder / "config.yaml", OmegaConf.to_yaml(cfg, resolve=True))
    parts.method.description = OmegaConf.to_container(cfg, resolve=True)
    trainer = build_trainer(cfg, parts)
    start = 0 if resume_from is None else resume(cfg, parts, trainer, resume_from)
    with closing(trainer.loggers):
        begin(trainer.loggers, this_job("train"), parts.method.description)
        return _fit(cfg, parts, trainer, resume_from, start)


def begin(loggers: Sequence[Logger], job: Job, config: Mapping[str, Any]) -> None:
    """Notify the loggers of the start; Lightning's own get the configuration."""
    for logger in loggers:
        if not isinstance(logger, RunLogger):
            logger.log_hyperparams(dict(config))
    for logger in of_runs(loggers):
        logger.begin(job, config)


def _fit(cfg: DictConfig, parts: Parts, trainer: pl.Trainer, resume_from: Path | None, start: int) -> dict[str, float]:
    """Run the iterations from ``start`` on and write the results."""
    with tf32(cfg.get("tf32")), flush_subnormals():
        on_cpu = trainer.strategy.root_device.type == "cpu"
        with threads(cfg.threads), keep_freed_cpu_memory(on_cpu and cfg.get("keep_freed_cpu_memory", True)):
            if cfg.get("summary", True) and is_first():
                show_start(cfg, parts, trainer)
                warn_of_days(parts, trainer, start)
            trainer.fit(parts.method, datamodule=parts.data, ckpt_path=resume_from, weights_only=True)
        if trainer.strategy.root_device.type == "cuda":
            parts.method.to(trainer.strategy.root_device)  # Lightning has moved it to the CPU, where samples take hours
        best = {}
        if cfg.test_checkpoint == "both":  # before the last checkpoint, because figures show the last one
            best = as_best(final_metrics(parts, tested_checkpoint("best", parts, trainer), cfg.eval_weights))
        which = "best" if cfg.test_checkpoint == "best" else "last"
        metrics = final_metrics(parts, tested_checkpoint(which, parts, trainer), cfg.eval_weights) | best | costs(parts)
    write_results(Path(cfg.run_dir) / "metrics.json", metrics, parts, trainer.loggers)
    if cfg.get("summary", True) and is_first():
        show_next_steps(cfg)
    return metrics


def refuse_another_run(cfg: DictConfig, folder: Path) -> None:
    """Refuse a new run in the folder of another one, as after the clock that names folders was set back.

    Raises:
        ConfigError: If the folder contains checkpoints and the run does not resume.
    """
    resumes = cfg.ckpt is not None or OmegaConf.select(cfg, "sweep.resume")
    if not resumes and (folder / "checkpoints" / "last.ckpt").is_file():
        raise ConfigError(
            f"{folder} holds a run already: resume it with ckpt=last, or choose another folder by hydra.run.dir=... ."
        )


def resume(cfg: DictConfig, parts: Parts, trainer: pl.Trainer, resume_from: Path) -> int:
    """Validate a checkpoint, and restore what Lightning does not: the dtype, the best checkpoint and the logs.

    Returns:
        The iteration of the checkpoint.

    Raises:
        ConfigError: If the checkpoint has another method, other sizes or settings that ``resume.allow`` does not
            name, or lies beyond the end of this run.
    """
    checkpoint = load_checkpoint(resume_from)
    make_room(parts.method, checkpoint)
    start = check_resumable(parts.method, checkpoint, resume_from)
    optimizers = [optimizer.state_dict() for optimizer in parts.method.configure_optimizers()]
    own = {"optimizer_states": optimizers, "loops": {"fit_loop": trainer.fit_loop.state_dict()}}
    check_restorable(checkpoint, resume_from, own)
    # Lightning loads before it converts the dtype, which would round float64 parameters
    parts.method.to(next(value.dtype for value in checkpoint["state_dict"].values() if value.is_floating_point()))
    if start > trainer.max_steps:
        raise ConfigError(
            f"{resume_from} is of iteration {start}, beyond trainer.max_steps={trainer.max_steps}: raise that, "
            "or evaluate the checkpoint with evaluate.py."
        )
    check_settings(checkpoint, cfg, resume_from)
    log.info("Resuming from iteration %d of %s.", start, resume_from)
    before = stored_precision(checkpoint)
    if before not in (None, trainer.precision):
        log.warning("The checkpoint is of trainer.precision=%s; the run goes on with %s.", before, trainer.precision)
    for name, callback in parts.callbacks.items():
        if isinstance(callback, Checkpoints):
            callback.adopt(resume_from, state_in(checkpoint, name))
    for logger in of_runs(trainer.loggers):
        logger.resume(checkpoint, resume_from)
    return start


def evaluate(cfg: DictConfig) -> dict[str, float]:
    """Compute the final metrics of a run again from its checkpoint.

    Args:
        cfg: The configuration composed from ``conf/evaluate.yaml``: ``ckpt``, and changes to the run's configuration.

    Returns:
        The metrics, which are also in ``evaluation.json``.

    Raises:
        EblvmError: For everything the user can correct.
    """
    quiet()
    if OmegaConf.is_missing(cfg, "ckpt"):
        raise ConfigError("Which checkpoint? python evaluate.py ckpt=outputs/DATE/TIME/checkpoints/last.ckpt")
    check_keys(cfg, EVALUATE_KEYS)
    check_types(cfg)
    checkpoint = load_checkpoint(cfg.ckpt)
    folder = prepare_folder(cfg.run_dir)
    with within_memory():
        return _evaluate(cfg, checkpoint, folder)


def _evaluate(cfg: DictConfig, checkpoint: dict[str, Any], folder: Path) -> dict[str, float]:
    """Build the run of a checkpoint, and write its final metrics."""
    stored = stored_config(checkpoint["eblvm_lit"]["config"], cfg)
    # the kind that the run had, where there is one: random numbers differ between kinds
    on_gpu = torch.cuda.is_available() and OmegaConf.select(stored, "trainer.accelerator") != "cpu"
    device = find_device(cfg.device or ("cuda" if on_gpu else "cpu"))
    parts = build(stored)
    make_room(parts.method, checkpoint)
    check_resumable(parts.method, checkpoint, Path(cfg.ckpt))
    warn_of_counts(stored)
    loggers = build_loggers(cfg)
    for logger in loggers:
        if not isinstance(logger, RunLogger):
            raise ConfigError(f"logger={type(logger).__name__} logs training alone: use logger=csv, wandb or none.")
    with closing(loggers):
        begin(loggers, this_job("evaluate"), {**checkpoint["eblvm_lit"]["config"], "ckpt": str(cfg.ckpt)})
        parts.method.to(device)
        with tf32(stored.get("tf32")), flush_subnormals():
            metrics = final_metrics(parts, checkpoint, stored.eval_weights)
        write_results(folder / "evaluation.json", metrics, parts, loggers)
    return metrics
