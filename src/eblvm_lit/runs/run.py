"""The functions train(cfg) and evaluate(cfg), which the command line and the tests call."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from functools import cache, partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import yaml
from omegaconf import DictConfig, OmegaConf

from eblvm_lit.errors import ConfigError
from eblvm_lit.runs.build import Parts, build, build_loggers, build_trainer, n_processes, root_device
from eblvm_lit.runs.console import next_steps, quiet, show_config, show_results, start_line
from eblvm_lit.runs.instantiate import LIBRARIES
from eblvm_lit.runs.load import load
from eblvm_lit.runs.results import estimators, evaluated, final_metrics, write_results
from eblvm_lit.runs.resume import (
    changed_rates,
    check_settings,
    earlier_checkpoint,
    earlier_metrics,
    find_checkpoint,
    refuse_other_run,
)
from eblvm_lit.runs.settings import adapt, check_config
from eblvm_lit.runs.stored_config import stored_config
from eblvm_lit.training.callbacks.start_checks import refuse_processes
from eblvm_lit.training.checkpoint_io import load_checkpoint, restore
from eblvm_lit.training.loggers.base import finish_runs, resume_runs
from eblvm_lit.training.loggers.wandb import WandbRun
from eblvm_lit.training.precision import choose_precision, stored_precision
from eblvm_lit.training.processes import check_launch, is_first, run_in_processes, started_outside
from eblvm_lit.training.provenance import device_name
from eblvm_lit.utils.command_line import in_sweep, typed_command
from eblvm_lit.utils.folders import claimed, prepare_folder
from eblvm_lit.utils.io import PARTIAL, write_text
from eblvm_lit.utils.memory import explain_lack_of_memory, keep_freed_memory
from eblvm_lit.utils.printing import say
from eblvm_lit.utils.run_files import COMMAND
from eblvm_lit.utils.torch_settings import find_device, torch_settings

__all__ = ["evaluate", "train"]

log = logging.getLogger(__name__)


def train(cfg: DictConfig, command: Mapping[str, Any] | None = None) -> dict[str, float]:
    """Train, evaluate the selected checkpoint, and write all results to ``cfg.run_dir``.

    Args:
        cfg: The configuration composed from ``conf/config.yaml``.
        command: The overrides that it was composed from, for the records of the run; None: Hydra knows them.

    Returns:
        The final metrics, which are also in ``metrics.json``.

    Raises:
        EblvmError: For everything the user can correct.
    """
    quiet()
    check_config(cfg)
    if cfg.sweep.resume:
        adapt(cfg)  # the configuration that an earlier start has stored was adapted, too
    if (metrics := earlier_metrics(cfg)) is not None:
        return metrics
    run_here = partial(run, command=typed_command() if command is None else command)
    with claimed(prepare_folder(cfg.run_dir)) if is_first() else nullcontext():
        if (n := n_processes(cfg)) > 1:
            check_launch(cfg.trainer.num_nodes)
            if not started_outside():
                parts, _ = _prepare(cfg)  # once for all processes
                refuse_processes(parts.method, parts.data, n)
                return run_in_processes(n, run_here, cfg)
        return run_here(cfg)


def run(cfg: DictConfig, command: Mapping[str, Any]) -> dict[str, float]:
    """Train in this process, which may be one of several."""
    quiet()
    parts, resume_from = _prepare(cfg)
    if is_first() and cfg.show_config:
        show_config(cfg)
    # once, by the first process
    trainer = build_trainer(cfg, parts, cache(partial(_take_folder, cfg, command)) if is_first() else lambda: None)
    try:
        if resume_from is not None:
            _resume(cfg, parts, trainer, resume_from)
        elif cfg.init_from is not None:
            _begin_with(cfg, parts)
        for logger in trainer.loggers:
            logger.log_hyperparams(parts.method.description)
        return _fit(cfg, parts, trainer, resume_from)
    finally:
        finish_runs(trainer.loggers, sys.exc_info()[0] is not None)


def _prepare(cfg: DictConfig) -> tuple[Parts, Path | None]:
    """Check the configuration, build its parts, decode the data, and choose the precision."""
    adapt(cfg)
    resume_from = earlier_checkpoint(cfg) or find_checkpoint(cfg)
    if is_first() and not cfg.sweep.resume:
        refuse_other_run(Path(cfg.run_dir), resume_from)
    parts = build(cfg, LIBRARIES)
    if cfg.test_checkpoint in ("best", "both") and "checkpoints" not in parts.callbacks:
        raise ConfigError(f"test_checkpoint={cfg.test_checkpoint} needs callbacks.checkpoints, which keeps the best.")
    if cfg.eval_weights != "raw" and "ema" not in parts.callbacks:
        raise ConfigError(f"eval_weights={cfg.eval_weights} needs averages of the parameters: add callbacks=ema.")
    if is_first():  # the first process downloads and decodes for all
        parts.data.setup()
    wanted = cfg.trainer.precision
    before = stored_precision(load_checkpoint(resume_from)) if resume_from and wanted == "auto" else None
    cfg.trainer.precision, reason = choose_precision(wanted, parts.method, root_device(cfg)[0], before)
    if reason is not None:
        log.info("precision=auto: %s, %s.", cfg.trainer.precision, reason)
    parts.method.description = OmegaConf.to_container(cfg, resolve=True)
    return parts, resume_from


def _take_folder(cfg: DictConfig, command: Mapping[str, Any]) -> None:
    """Write the records of a run that has begun; until then its folder is as it was, because it may be refused."""
    folder = Path(cfg.run_dir)
    (folder / "metrics.json").unlink(missing_ok=True)  # it says that the run has finished
    places = (folder, folder / "checkpoints", folder / "figures")
    for leftover in [path for place in places for path in place.glob(PARTIAL) if path.is_file()]:
        leftover.unlink()  # of a process that was killed while it wrote
    if command:
        write_text(folder / COMMAND, yaml.safe_dump(dict(command), sort_keys=False))
    write_text(folder / "config.yaml", OmegaConf.to_yaml(cfg, resolve=True))


def _fit(cfg: DictConfig, parts: Parts, trainer: pl.Trainer, resume_from: Path | None) -> dict[str, float]:
    """Run the iterations, test, and write the results."""
    folder = Path(cfg.run_dir)
    tf32 = cfg.get("tf32")
    hints = [*parts.method.memory_hints(), "lower data.eval_batch_size for validations"]
    with explain_lack_of_memory(hints), keep_freed_memory(), torch_settings(cfg.threads, tf32):
        if cfg.summary and is_first():
            say(start_line(cfg, parts, device_name(trainer.strategy.root_device)))
        trainer.fit(parts.method, datamodule=parts.data, ckpt_path=resume_from, weights_only=True)
    with explain_lack_of_memory(["lower data.eval_batch_size"]), torch_settings(tf32=tf32):
        metrics = evaluated(cfg.test_checkpoint, cfg.eval_weights, parts, trainer, folder)
    if is_first():
        write_results(folder / "metrics.json", metrics, parts, trainer.loggers)
        _upload(trainer, folder)
        show_results(metrics, folder, estimators(parts))
        if cfg.summary and not in_sweep():
            say("\n".join(next_steps(cfg, parts.method)))
    return metrics


def _resume(cfg: DictConfig, parts: Parts, trainer: pl.Trainer, path: Path) -> None:
    """Check that a checkpoint is of this run, and continue its logs.

    Raises:
        ConfigError: If the checkpoint has another method, other sizes or settings that ``resume.allow`` does not
            name, or lies beyond the end of this run.
    """
    checkpoint = load_checkpoint(path)
    start = restore(parts.method, checkpoint, path)  # with its type: Lightning would round float64 parameters
    if start > trainer.max_steps:
        raise ConfigError(
            f"{path} is of iteration {start}, beyond trainer.max_steps={trainer.max_steps}: raise that, or evaluate "
            "the checkpoint with evaluate.py."
        )
    check_settings(checkpoint, cfg, path)
    log.info("Resuming from iteration %d of %s.", start, path)
    if changed := changed_rates(parts.method, checkpoint, trainer.max_steps):
        log.warning("The learning rate leaves its schedule at iteration %d: %s.", start, changed)
    resume_runs(trainer.loggers, checkpoint.get("loggers", {}), path.parent.parent, start)


def _begin_with(cfg: DictConfig, parts: Parts) -> None:
    """Give the networks of a new run the parameters of a trained one, those that both have.

    Raises:
        ConfigError: If they have none in common, or of other sizes.
    """
    trained = load(cfg.init_from, allow_packages=cfg.allow_packages, cache_dir=cfg.cache_dir).method.networks()
    common = {name: network for name, network in parts.method.networks().items() if name in trained}
    if not common:
        raise ConfigError(f"init_from={cfg.init_from} has no network of this method.")
    for name, network in common.items():
        try:
            network.load_state_dict(trained[name].state_dict())
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1].strip()
            raise ConfigError(f"init_from={cfg.init_from} is of another model: {reason}") from None
        for theirs, own in zip_longest(map(_described, trained[name].modules()), map(_described, network.modules())):
            if theirs != own:
                raise ConfigError(f"init_from={cfg.init_from} is of another model: it has {theirs}, this run {own}.")


def _described(module: torch.nn.Module) -> str:
    """The class of a module and what it shows of its settings, without its parts.

    Example:
        >>> _described(torch.nn.Sequential(torch.nn.ELU())), _described(torch.nn.ELU())
        ('Sequential()', 'ELU(alpha=1.0)')
    """
    return f"{type(module).__name__}({module.extra_repr()})"


def _upload(trainer: pl.Trainer, folder: Path) -> None:
    """Upload the checkpoints to W&B, if asked."""
    for logger in trainer.loggers:
        if isinstance(logger, WandbRun) and logger.log_checkpoints:
            artifact = sys.modules["wandb"].Artifact(f"checkpoint-{logger.version}", type="model")
            artifact.add_dir(str(folder / "checkpoints"))
            logger.experiment.log_artifact(artifact)


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
    checkpoint = load_checkpoint(cfg.ckpt)
    folder = prepare_folder(cfg.run_dir)
    stored = stored_config(checkpoint["eblvm_lit"]["config"], cfg)
    # the kind that the run had, where there is one: random numbers differ between kinds
    on_gpu = torch.cuda.is_available() and OmegaConf.select(stored, "trainer.accelerator") != "cpu"
    device = find_device(cfg.device or ("cuda" if on_gpu else "cpu"))
    parts = build(stored)
    loggers = build_loggers(cfg)
    try:
        for logger in loggers:
            logger.log_hyperparams({**checkpoint["eblvm_lit"]["config"], "ckpt": str(cfg.ckpt)})
        tf32 = stored.get("tf32")
        with claimed(folder), explain_lack_of_memory(["lower data.eval_batch_size"]), torch_settings(tf32=tf32):
            parts.method.to(device)
            metrics = final_metrics(parts, checkpoint, cfg.ckpt, stored.eval_weights)
            write_results(folder / "evaluation.json", metrics, parts, loggers)
        show_results(metrics, folder, estimators(parts))
    finally:
        finish_runs(loggers, sys.exc_info()[0] is not None)
    return metrics
