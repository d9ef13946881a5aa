"""From a configuration to the objects of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pytorch_lightning as pl
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from eblvm_lit.callbacks.checkpoints import AtomicCheckpointIO
from eblvm_lit.callbacks.group import grouped
from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.errors import ConfigError
from eblvm_lit.instantiation import check_arguments, instantiate, resolve_target
from eblvm_lit.methods.base import Method

__all__ = ["Parts", "build", "build_trainer"]


class Parts(NamedTuple):
    """What a configuration describes."""

    data: ArrayDataModule
    method: Method
    callbacks: dict[str, pl.Callback]


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
    """Lightning's trainer, with what this package needs.

    Raises:
        ConfigError: For an option that Lightning does not have, cannot fulfil, or that is set here.
    """
    loggers = [
        instantiate(node, f"logger.{name}") for name, node in (cfg.get("logger") or {}).items() if node is not None
    ]
    options = OmegaConf.to_container(cfg.trainer, resolve=True)
    trainer_class = resolve_target(options.pop("_target_"))
    check_arguments(trainer_class, options, "trainer")
    own = {
        "max_epochs": -1,  # one endless epoch: iterations are what is counted
        "val_check_interval": cfg.trainer.max_steps // cfg.n_validations,
        "check_val_every_n_epoch": None,
        "num_sanity_val_steps": 0,
        "inference_mode": False,  # a validation loss is a function of a gradient
        "enable_checkpointing": False,  # ours are in callbacks
        "callbacks": grouped(callbacks),
        "logger": loggers,
        "plugins": [AtomicCheckpointIO()],
    }
    if both := sorted(own.keys() & options.keys()):
        raise ConfigError(
            f"trainer.{both[0]} cannot be set: runs are made of iterations (max_steps), n_validations, callbacks."
        )
    try:
        return trainer_class(**options, **own)
    except (MisconfigurationException, ValueError) as error:
        raise ConfigError(f"trainer: {error}") from error
