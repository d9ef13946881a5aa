"""The functions train(cfg) and evaluate(cfg), each of which performs all steps of a run in order."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.utilities import rank_zero_only

from eblvm_lit.errors import ConfigError
from eblvm_lit.runs.build import build, build_loggers, build_trainer, processes_to_start
from eblvm_lit.runs.console import quiet, show_config, show_next_steps, show_results, show_start
from eblvm_lit.runs.instantiate import import_packages, packages_of, to_plain
from eblvm_lit.runs.results import estimators, evaluated, final_metrics, write_results
from eblvm_lit.runs.resume import check_splits, find_checkpoint, finished_job, refuse_other_run
from eblvm_lit.runs.settings import adapt, check_config
from eblvm_lit.runs.start import choose_device, choose_precision, keep_records, start
from eblvm_lit.runs.stored_config import stored_config
from eblvm_lit.training.callbacks.start_checks import refuse_processes
from eblvm_lit.training.checkpoint_io import load_checkpoint, tested_checkpoint
from eblvm_lit.training.loggers.base import logging_to, upload_checkpoints
from eblvm_lit.training.processes import claimed_by_run, run_in_processes
from eblvm_lit.utils.command_line import typed_command
from eblvm_lit.utils.folders import claimed, prepare_folder
from eblvm_lit.utils.memory import explain_lack_of_memory, keep_freed_memory
from eblvm_lit.utils.torch_settings import torch_settings

__all__ = ["evaluate", "train"]

LESS_MEMORY = "lower data.eval_batch_size"


def train(cfg: DictConfig, command: Mapping[str, Any] | None = None) -> dict[str, float]:
    """Train, evaluate the selected checkpoint, and write all results to ``cfg.run_dir``.

    If several processes share the minibatches, each of them calls this function.

    Args:
        cfg: The configuration composed from ``conf/config.yaml``; values that depend on the data files are set in it.
        command: The overrides that it was composed from, for the records of the run; None takes them from Hydra.

    Returns:
        The final metrics, which are also in ``metrics.json``.

    Raises:
        EblvmError: For every error that the user can correct.
    """
    quiet()
    command = typed_command() if command is None else command
    folder = Path(cfg.run_dir)
    # Check the configuration. No file is written before the first minibatch is done.
    check_config(cfg)
    adapt(cfg)
    if (metrics := finished_job(cfg)) is not None:
        return metrics
    with claimed_by_run(folder):
        resume_from = find_checkpoint(cfg)
        refuse_other_run(folder, resume_from, is_job=cfg.sweep.resume)
        # Build the parts of the run, and start the other processes if several share it.
        parts = build(cfg, packages_of(cfg))
        rank_zero_only(parts.data.setup)()  # only the first process downloads and decodes the data
        if (n := processes_to_start(cfg.trainer)) > 1:
            refuse_processes(parts.method, parts.data, n)
            return run_in_processes(n, partial(train, command=command), cfg)
        cfg.trainer.precision = choose_precision(cfg.trainer, parts.method, resume_from)
        parts.method.description = to_plain(cfg)
        trainer = build_trainer(cfg, parts, keep_records(folder, parts.method.description, command))
        if cfg.show_config:
            show_config(cfg)
        with logging_to(trainer.loggers):
            # Set the initial parameters, which are random or come from another run or a checkpoint. Then train.
            start(cfg, parts, trainer, resume_from)
            hints = [*parts.method.memory_hints(), f"{LESS_MEMORY} for validations"]
            with explain_lack_of_memory(hints), keep_freed_memory(), torch_settings(cfg.threads, cfg.get("tf32")):
                if cfg.summary:
                    show_start(parts, trainer, folder)
                trainer.fit(parts.method, datamodule=parts.data, ckpt_path=resume_from, weights_only=True)
            # Evaluate the checkpoints, write the results, and show them.
            with explain_lack_of_memory([LESS_MEMORY]), torch_settings(cfg.threads, cfg.get("tf32")):
                metrics = evaluated(cfg.test_checkpoint, cfg.eval_weights, parts, trainer, folder)
                write_results(folder / "metrics.json", metrics, parts, trainer.loggers)
            upload_checkpoints(trainer.loggers, folder)
        show_results(metrics, folder, estimators(parts))
        if cfg.summary:
            show_next_steps(folder, cfg.outputs_dir, parts.method, trainer.max_steps, cfg.allow_packages)
    return metrics


def evaluate(cfg: DictConfig) -> dict[str, float]:
    """Compute the final metrics of a run again from its checkpoint.

    Args:
        cfg: The configuration composed from ``conf/evaluate.yaml``: ``ckpt``, and changes to the run's configuration.

    Returns:
        The metrics, which are also in ``evaluation.json``.

    Raises:
        EblvmError: For every error that the user can correct.
    """
    quiet()
    if OmegaConf.is_missing(cfg, "ckpt"):
        raise ConfigError("Name a checkpoint: python evaluate.py ckpt=outputs/DATE/TIME/checkpoints/last.ckpt")
    checkpoint = load_checkpoint(tested_checkpoint(cfg.ckpt))
    folder = prepare_folder(cfg.run_dir)
    stored = stored_config(checkpoint["eblvm_lit"]["config"], cfg)
    with claimed(folder):
        parts = build(stored, import_packages(stored.get("allow_packages")))
        check_splits(checkpoint, parts.data, cfg, cfg.ckpt)
        parts.method.to(choose_device(cfg.device, stored))
        loggers = build_loggers(cfg.get("logger"), packages_of(cfg))
        described = {**checkpoint["eblvm_lit"]["config"], "ckpt": str(cfg.ckpt)}
        settings = torch_settings(stored.get("threads"), stored.get("tf32"))
        with logging_to(loggers, described), explain_lack_of_memory([LESS_MEMORY]), settings:
            metrics = final_metrics(parts, checkpoint, cfg.ckpt, stored.eval_weights)
            write_results(folder / "evaluation.json", metrics, parts, loggers)
        show_results(metrics, folder, estimators(parts))
    return metrics
