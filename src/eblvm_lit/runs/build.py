"""Build the data, the method, the callbacks, the loggers and the trainer of a run from its configuration."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import pytorch_lightning as pl
import torch
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.callbacks import LambdaCallback
from pytorch_lightning.loggers import Logger
from pytorch_lightning.strategies import DDPStrategy
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.base import Method
from eblvm_lit.runs.instantiate import instantiate, misfit, packages_of, resolve_target
from eblvm_lit.training.callbacks.compiling import Compiling
from eblvm_lit.training.callbacks.start_checks import StartChecks
from eblvm_lit.training.checkpoint_io import AtomicCheckpointIO
from eblvm_lit.training.processes import check_launch, started_outside

__all__ = ["Parts", "build", "build_loggers", "build_trainer", "processes_to_start", "root_device"]

Kind = TypeVar("Kind", bound=pl.Callback)
# The exceptions that Lightning raises for values that it cannot use.
IMPOSSIBLE = (MisconfigurationException, ImportError, TypeError, ValueError, RuntimeError)


class Parts(NamedTuple):
    """The data, the method and the callbacks of a run, built from its configuration."""

    data: ArrayDataModule
    method: Method
    callbacks: dict[str, pl.Callback]

    def callbacks_of(self, kind: type[Kind]) -> list[Kind]:
        """Return those callbacks of the run that are instances of a class, in the order of the configuration."""
        return [callback for callback in self.callbacks.values() if isinstance(callback, kind)]


def iterations_per_batch(cfg: DictConfig) -> int:
    """Return the number of training iterations in one step of Lightning's loop, at most ``cfg.iterations_per_batch``.

    The number divides ``cfg.iterations_per_batch`` and the intervals of validation, logging and callbacks, so that
    each of them runs at exactly its iterations.

    Example:
        >>> trainer = {"max_steps": 1000, "log_every_n_steps": 25}
        >>> cfg = {"iterations_per_batch": 10, "n_validations": 10, "trainer": trainer, "callbacks": {}}
        >>> iterations_per_batch(OmegaConf.create(cfg))
        5
    """
    if cfg.trainer.get("overfit_batches"):
        return 1  # overfit_batches of Lightning counts batches, so a batch must be one iteration
    moments = [cfg.trainer.max_steps, cfg.trainer.max_steps // cfg.n_validations, cfg.trainer.log_every_n_steps]
    # A callback with a key "every" acts once in so many iterations, so the number must divide it. The callback
    # nonfinite is left out, because it checks each iteration by itself.
    nodes = [node for name, node in cfg.callbacks.items() if name != "nonfinite" and node is not None]
    moments += [node.every for node in nodes if node.get("every")]
    return math.gcd(cfg.get("iterations_per_batch", 1), *moments)


def build(cfg: DictConfig, packages: Sequence[str] = ()) -> Parts:
    """Build the data set, the method and the callbacks of a run.

    Args:
        cfg: The configuration.
        packages: The packages, in addition to this one, whose classes the configuration may name. They include
            :data:`LIBRARIES` only if the user has composed the configuration, so not if it comes from a checkpoint.
    """
    # this seed is for the initial parameters only; all other random numbers come from keyed generators
    pl.seed_everything(cfg.seed, verbose=False)
    data = instantiate(cfg.data, "data", packages, ArrayDataModule)
    data.max_examples = cfg.get("max_examples")
    method = instantiate(cfg.method, "method", packages, Method)
    if method.event_shape != data.event_shape:
        raise _unfit(method, data)
    callbacks = {
        name: instantiate(node, f"callbacks.{name}", packages, pl.Callback)
        for name, node in cfg.callbacks.items()
        if node is not None
    }
    return Parts(data, method, callbacks)


def _unfit(method: Method, data: ArrayDataModule) -> ConfigError:
    """Return the error of a model whose v has another shape than the data."""
    energy = method.parts.energy
    if hasattr(energy, "noise_range") and method.event_shape == energy.event_shape:
        return ConfigError(
            f"The model {type(energy).__name__} takes the noise level as an input beside v, which "
            f"{type(method).__name__} does not give: choose method=levels, dual, bidual or vages_dual, or another "
            "model."
        )
    flat = len(method.event_shape) == 1 < len(data.event_shape) and hasattr(data, "flatten")
    remedy = (
        f"add data.flatten=true sizes.v_shape=[{math.prod(data.event_shape)}], or choose a model of images."
        if flat
        else "choose the model that fits the data, or set its sizes."
    )
    return ConfigError(
        f"The model takes v of shape {method.event_shape}, but the data have {tuple(data.event_shape)}: {remedy}"
    )


def build_loggers(logger: DictConfig | None, packages: Sequence[str]) -> list[Logger]:
    """Build the loggers that the user's own configuration names; the loggers in a checkpoint are never built."""
    nodes = {name: node for name, node in (logger or {}).items() if node is not None}
    return [instantiate(node, f"logger.{name}", packages, Logger) for name, node in nodes.items()]


def n_processes(trainer: DictConfig) -> int:
    """Return the number of processes of a run: one for each device in ``trainer.devices``, on each machine."""
    return 1 if trainer.devices in (1, "1") and trainer.num_nodes == 1 else _bare_trainer(trainer).world_size


def processes_to_start(trainer: DictConfig) -> int:
    """Return the number of processes to start, or 1 if this process is already one of several.

    Raises:
        ConfigError: If this machine has no such devices, or other processes cannot be started from here.
    """
    n = n_processes(trainer)
    if n > 1:
        check_launch(trainer.num_nodes)
    return 1 if started_outside() else n


def root_device(trainer: DictConfig) -> torch.device:
    """Return the device on which this process trains.

    Raises:
        ConfigError: If this machine has no such devices.
    """
    return _bare_trainer(trainer).strategy.root_device


def _bare_trainer(trainer: DictConfig) -> pl.Trainer:
    """Build a trainer with the devices of a run and no other options."""
    devices: Any = OmegaConf.to_container(trainer, resolve=True)
    try:
        return pl.Trainer(
            accelerator=trainer.accelerator,
            devices=devices["devices"],
            num_nodes=trainer.num_nodes,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
    except IMPOSSIBLE as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"trainer: {reason}") from error


def build_trainer(cfg: DictConfig, parts: Parts, begin: Callable[[], None] = lambda: None) -> pl.Trainer:
    """Build Lightning's trainer with the options that this package needs, and set the data's ``iterations_per_batch``.

    Args:
        cfg: The configuration.
        parts: The parts of the run.
        begin: A function that is called after each minibatch and at the end, before the other callbacks. All steps
            that may refuse the run come before its first call: checks, restoring by Lightning, compilation.

    Raises:
        ConfigError: If an option is unknown to Lightning or impossible, or if this package sets it itself.
    """
    packages = packages_of(cfg)
    options = OmegaConf.to_container(cfg.trainer, resolve=True)
    trainer_class = resolve_target(options.pop("_target_"), packages)
    parts.data.iterations_per_batch = iterations_per_batch(cfg)
    watch = LambdaCallback(on_train_batch_end=lambda *_: begin(), on_fit_end=lambda *_: begin())
    own = {
        "max_epochs": -1,  # one endless epoch, because runs are measured in iterations
        "val_check_interval": cfg.trainer.max_steps // cfg.n_validations // parts.data.iterations_per_batch,
        "check_val_every_n_epoch": None,
        "num_sanity_val_steps": 0,
        "inference_mode": False,  # validation losses need gradients
        "enable_checkpointing": False,  # callbacks.checkpoints saves the checkpoints
        "enable_autolog_hparams": False,  # otherwise Lightning saves the loggers' files before the run has begun
        "callbacks": [watch, StartChecks(), Compiling(), *parts.callbacks.values()],
        "logger": build_loggers(cfg.get("logger"), packages),
        "plugins": [AtomicCheckpointIO()],
    }
    try:
        if n_processes(cfg.trainer) > 1:
            # Methods average their gradients themselves, because DDP's hooks do not see gradients of torch.func.grad.
            # Buffers need no broadcast, because all processes already have equal buffers. The timeout is long, because
            # processes wait for other processes that compute metrics or draw figures.
            options["strategy"] = DDPStrategy(timeout=timedelta(hours=3), broadcast_buffers=False)
        return trainer_class(**options, **own)
    except IMPOSSIBLE as error:
        raise misfit("trainer", pl.Trainer, error) from error
