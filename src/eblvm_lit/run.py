"""train(cfg) and evaluate(cfg): what the command line does, as plain functions."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytorch_lightning as pl
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table
from rich.tree import Tree

from eblvm_lit.callbacks.checkpoints import AtomicCheckpointIO, Checkpoints, load_checkpoint
from eblvm_lit.callbacks.evaluation import Evaluation
from eblvm_lit.callbacks.figures import Figures
from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.errors import ConfigError, EblvmError
from eblvm_lit.instantiation import instantiate
from eblvm_lit.loggers.csv import CSVCurves
from eblvm_lit.methods.base import Method
from eblvm_lit.resume import find_checkpoint

__all__ = ["evaluate", "main", "train"]

log = logging.getLogger(__name__)

PRECISIONS = ("32-true", "64-true", "bf16-mixed")
# Groups that some methods have no use for; a choice nobody reads must not look as if it had been used.
OPTIONAL_PARTS = ("posterior", "divergence", "lower_optimizer")


class Parts(NamedTuple):
    """What a configuration describes."""

    data: ArrayDataModule
    method: Method
    callbacks: dict[str, pl.Callback]


def check_config(cfg: DictConfig) -> None:
    """Refuse what cannot work before anything is built.

    Raises:
        ConfigError: In one sentence.
    """
    for part in OPTIONAL_PARTS:
        if cfg.get(part) is not None and part not in cfg.method:
            raise ConfigError(f"This method has no {part}: leave out {part}=..., or choose a method that has one.")
    precision = str(cfg.trainer.get("precision", "32-true"))
    if precision not in PRECISIONS:
        raise ConfigError(
            f"trainer.precision={precision} is not supported (a loss scaler does not fit gradients of gradients); "
            f"use one of {', '.join(PRECISIONS)}."
        )
    if cfg.trainer.get("devices", 1) not in (1, "1", "auto", [0]) or cfg.trainer.get("num_nodes", 1) != 1:
        raise ConfigError("Only one device is supported for now: use trainer.devices=1, one process per job.")
    if not (isinstance(cfg.trainer.max_steps, int) and cfg.trainer.max_steps >= 1):
        raise ConfigError(f"trainer.max_steps counts iterations and must be at least 1, not {cfg.trainer.max_steps}.")
    if not 1 <= cfg.n_validations <= cfg.trainer.max_steps:
        raise ConfigError(
            f"n_validations must be between 1 and trainer.max_steps ({cfg.trainer.max_steps}), not {cfg.n_validations}."
        )
    if cfg.select not in ("best", "last"):
        raise ConfigError(f"select is 'best' or 'last', not {cfg.select!r}.")


def prepare_folder(path: str) -> Path:
    """The run's folder, made and writable.

    Raises:
        ConfigError: If nothing can be written there.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ConfigError(f"The output folder {folder} cannot be written to ({error.strerror}).") from None
    return folder


def build(cfg: DictConfig) -> Parts:
    """Data, method and callbacks of a configuration."""
    packages = list(cfg.get("allow_packages") or ())
    pl.seed_everything(cfg.seed, verbose=False)  # the initial parameters; all other noise is keyed
    data = instantiate(cfg.data, "data", packages)
    method = instantiate(cfg.method, "method", packages)
    if method.energy.event_shape != data.event_shape:
        raise ConfigError(
            f"The model takes v of shape {method.energy.event_shape}, the data have {tuple(data.event_shape)}: "
            "choose the model that fits the data, or set its sizes."
        )
    callbacks = {
        name: instantiate(node, f"callbacks.{name}", packages)
        for name, node in cfg.callbacks.items()
        if node is not None
    }
    return Parts(data, method, callbacks)


def build_trainer(cfg: DictConfig, callbacks: Mapping[str, pl.Callback]) -> pl.Trainer:
    """Lightning's trainer, with the defaults this package needs."""
    loggers = [
        instantiate(node, f"logger.{name}") for name, node in (cfg.get("logger") or {}).items() if node is not None
    ]
    options = OmegaConf.to_container(cfg.trainer, resolve=True)
    options.pop("_target_")
    return pl.Trainer(
        **options,
        max_epochs=-1,  # one endless epoch: iterations are what is counted
        val_check_interval=max(1, cfg.trainer.max_steps // cfg.n_validations),
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        inference_mode=False,  # a validation loss is a function of a gradient
        enable_checkpointing=False,  # ours are in callbacks
        callbacks=list(callbacks.values()),
        logger=loggers,
        plugins=[AtomicCheckpointIO()],
    )


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file as a whole."""
    partial = path.with_suffix(".tmp")
    partial.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
    os.replace(partial, path)


def show_config(cfg: DictConfig) -> None:
    """Print the composed configuration as a tree."""

    def grow(tree: Tree, node: Mapping[str, Any]) -> None:
        for key, value in node.items():
            if isinstance(value, dict) and value:
                grow(tree.add(f"[bold]{key}[/]"), value)
            else:
                tree.add(f"{key}: {value}")

    tree = Tree("[bold]configuration[/]", guide_style="dim")
    grow(tree, OmegaConf.to_container(cfg, resolve=True))
    Console().print(tree)


def show_results(metrics: Mapping[str, float], folder: Path) -> None:
    """Print the final metrics as a table."""
    table = Table("metric", "value", title=str(folder))
    for name, value in sorted(metrics.items()):
        table.add_row(name, f"{value:,.4f}")
    Console().print(table)


def test(parts: Parts, checkpoint: Mapping[str, Any], trainer: pl.Trainer | None = None) -> dict[str, float]:
    """Final metrics and figures of a checkpoint's parameters."""
    parts.method.load_state_dict(checkpoint["state_dict"])
    parts.method.eval()
    parts.data.setup()
    metrics: dict[str, float] = {"iteration": checkpoint["eblvm_lit"]["iteration"]}
    for callback in parts.callbacks.values():
        if isinstance(callback, Evaluation):
            metrics |= callback.test(parts.method, parts.data)
    if trainer is not None:
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=checkpoint["eblvm_lit"]["iteration"])
            logger.save()
    for callback in parts.callbacks.values():
        if isinstance(callback, Figures):
            callback.draw(parts.method, parts.data)
    return metrics


def train(cfg: DictConfig) -> dict[str, float]:
    """Train as configured, evaluate the selected checkpoint, and leave everything in ``cfg.run_dir``.

    Args:
        cfg: As composed from ``conf/config.yaml``.

    Returns:
        The final metrics, which are also in ``metrics.json``.

    Raises:
        EblvmError: For everything the user can mend.
    """
    check_config(cfg)
    folder = prepare_folder(cfg.run_dir)
    if cfg.show_config:
        show_config(cfg)
    OmegaConf.save(cfg, folder / "config.yaml", resolve=True)
    parts = build(cfg)
    parts.data.setup()
    parts.method.description = OmegaConf.to_container(cfg, resolve=True)
    resume_from = find_checkpoint(cfg)
    trainer = build_trainer(cfg, parts.callbacks)
    if resume_from is not None:
        start = parts.method.check_resumable(load_checkpoint(resume_from), resume_from)
        log.info("Going on from iteration %d of %s.", start, resume_from)
        earlier = resume_from.parent.parent / "metrics.csv"
        for logger in trainer.loggers:
            if isinstance(logger, CSVCurves) and earlier.is_file():
                logger.continue_from(earlier, start)
    try:
        trainer.fit(parts.method, datamodule=parts.data, ckpt_path=resume_from, weights_only=True)
    except KeyboardInterrupt:
        raise EblvmError("Interrupted.") from None
    checkpoints = next((c for c in parts.callbacks.values() if isinstance(c, Checkpoints)), None)
    if checkpoints is None:
        selected = {"state_dict": parts.method.state_dict(), "eblvm_lit": {"iteration": trainer.global_step}}
    else:
        best = cfg.select == "best" and checkpoints.best is not None
        selected = load_checkpoint(checkpoints.best_path if best else checkpoints.last_path)
    metrics = test(parts, selected, trainer)
    write_json(folder / "metrics.json", metrics)
    show_results(metrics, folder)
    return metrics


def evaluate(cfg: DictConfig) -> dict[str, float]:
    """Evaluate a checkpoint on the test split: the metrics a run ends with, from the checkpoint alone.

    Args:
        cfg: As composed from ``conf/evaluate.yaml``: ``ckpt``, and what may differ from the run.

    Returns:
        The metrics, which are also in ``evaluation.json``.

    Raises:
        EblvmError: For everything the user can mend.
    """
    folder = prepare_folder(cfg.run_dir)
    checkpoint = load_checkpoint(cfg.ckpt)
    stored = OmegaConf.create(checkpoint["eblvm_lit"]["config"])
    stored.run_dir = cfg.run_dir
    stored.allow_packages = list(cfg.get("allow_packages") or ())  # never from the checkpoint
    if cfg.seed is not None:
        stored.seed = stored.method.seed = cfg.seed
    if cfg.data_root is not None:
        stored.data.root = cfg.data_root
    for node in stored.callbacks.values():
        if node is not None and "save_dir" in node:
            node.save_dir = cfg.run_dir
    parts = build(stored)
    parts.method.check_resumable(checkpoint, Path(cfg.ckpt))
    metrics = test(parts, checkpoint)
    write_json(folder / "evaluation.json", metrics)
    show_results(metrics, folder)
    return metrics


def main(function: Callable[[DictConfig], dict[str, float]], cfg: DictConfig) -> float | None:
    """Run ``train`` or ``evaluate`` for the command line: one sentence and a non-zero exit for the user's errors.

    Returns:
        The metric named by ``cfg.optimized_metric``, for sweepers.
    """
    try:
        metrics = function(cfg)
    except EblvmError as error:
        log.error("%s", error)
        sys.exit(getattr(error, "exit_code", 1))
    finally:
        _close_wandb()
    wanted = cfg.get("optimized_metric")
    return None if wanted is None else metrics[wanted]


def _close_wandb() -> None:
    """Without this the next job of a multirun in this process would log into this job's run."""
    wandb = sys.modules.get("wandb")
    if wandb is not None and getattr(wandb, "run", None) is not None:
        wandb.finish()
