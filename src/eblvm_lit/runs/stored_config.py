"""The training configuration in a checkpoint, validated and combined with the overrides of an evaluation."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from eblvm_lit.errors import ConfigError, DataError
from eblvm_lit.runs.annotations import check_values, typed_key
from eblvm_lit.runs.instantiate import refuse_interpolations
from eblvm_lit.runs.settings import EVALUATION
from eblvm_lit.training.checkpoint_io import checkpoint_file

__all__ = ["redirect", "stored_config"]

# The arguments of callbacks that an evaluation may replace. The value of each entry has the arguments of the callback
# that are then reset.
CHOICES = {("evaluation", "metrics"): {"at_validation": [], "intervals": {}}, ("figures", "figures"): {}}


def stored_config(plain: Mapping[str, Any], cfg: DictConfig) -> DictConfig:
    """Return the training configuration in a checkpoint, with the changes from the command line applied.

    Args:
        plain: The configuration in the checkpoint, which is not trusted.
        cfg: The configuration composed from ``conf/evaluate.yaml``.

    Raises:
        DataError: If the checkpoint lacks a required part.
        ConfigError: For an interpolation, a value of another type, or metrics or figures whose callback is missing.
    """
    if (
        not isinstance(plain, dict)
        or not all(isinstance(plain.get(part), dict) for part in ("data", "method", "callbacks"))
        or "seed" not in plain
    ):
        raise DataError(f"{cfg.ckpt} does not say how it was trained: its data, method, callbacks or seed are missing.")
    # Training resolves all interpolations before it writes a checkpoint. An interpolation in an untrusted checkpoint is
    # refused, because it could read environment variables.
    refuse_interpolations(plain, "config")
    stored = OmegaConf.create(dict(plain))
    for name, callback in plain["callbacks"].items():
        if isinstance(callback, dict) and str(callback.get("_target_")).startswith("pytorch_lightning."):
            # Callbacks of Lightning are useful only in training, and a checkpoint may not name them.
            del stored.callbacks[name]
    stored.run_dir = cfg.run_dir
    stored.cache_dir = cfg.cache_dir
    stored.allow_packages = cfg.allow_packages
    if cfg.seed is not None:
        stored.seed = stored.method.seed = cfg.seed
    stored.eval_weights = cfg.eval_weights or stored.get("eval_weights", "raw")
    asked = {name: cfg[name] for name in EVALUATION if name in cfg}
    asked["eval_weights"] = stored.eval_weights
    check_values(asked, EVALUATION, functools.partial(typed_key, cfg, ""))
    run_folder = checkpoint_file(cfg.ckpt).absolute().parent.parent
    redirect(
        stored,
        {
            "save_dir": cfg.run_dir,
            "cache_dir": cfg.cache_dir,
            # the folder of the evaluated run contains its curves, and the arrays of a run that was trained from Python
            "csv_path": str(run_folder / "metrics.csv"),
            "run_folder": str(run_folder),
        },
    )
    _choose(stored, cfg)
    if cfg.data_root is not None:  # replace the root of the data, and of outlier data sets in the callbacks
        for part in (stored.data, stored.callbacks):
            redirect(part, {"root": cfg.data_root})
        if not {"root", "run_folder"} & {*stored.data}:  # a file of your own
            for name in ("path", "train", "val", "test"):
                old = stored.data.get(name)
                if old and not Path(old).expanduser().exists():
                    stored.data[name] = str(Path(cfg.data_root) / Path(old).name)
    return stored


def _choose(stored: DictConfig, cfg: DictConfig) -> None:
    """Replace the run's sampler, metrics and figures if the command line chooses others."""
    if cfg.get("sampler") is not None:
        stored.sampler = OmegaConf.to_container(cfg.sampler)
    for (callback, part), consequences in CHOICES.items():
        chosen = OmegaConf.select(cfg, f"callbacks.{callback}.{part}")
        if chosen is None:
            continue
        if stored.callbacks.get(callback) is None:
            raise ConfigError(f"The run of this checkpoint had no callbacks.{callback} that could have other {part}.")
        chosen = OmegaConf.to_container(chosen)
        if any(isinstance(node, dict) and "_target_" not in node for node in chosen.values()):
            stored.callbacks[callback].merge_with({part: chosen})
        else:
            stored.callbacks[callback].update({part: chosen, **consequences})


def redirect(node: DictConfig | ListConfig, folders: Mapping[str, str]) -> None:
    """Replace the paths in a configuration, so that a checkpoint cannot choose which files are read or written."""
    for name in node if isinstance(node, DictConfig) else range(len(node)):
        if name in folders:
            node[name] = folders[name]
        elif not OmegaConf.is_missing(node, name) and isinstance(node[name], DictConfig | ListConfig):
            redirect(node[name], folders)
