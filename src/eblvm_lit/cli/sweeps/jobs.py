"""Earlier results and checkpoints of a resumed job of a sweep."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from eblvm_lit.errors import DataError
from eblvm_lit.training.checkpoint_io import load_checkpoint
from eblvm_lit.training.status import has_finished
from eblvm_lit.utils.plain_files import check_plain
from eblvm_lit.utils.run_files import read_metrics, read_yaml

__all__ = ["earlier_checkpoint", "earlier_metrics"]

log = logging.getLogger(__name__)

INCIDENTAL = ("sweep", "resume", "show_config", "summary")


def earlier_metrics(cfg: DictConfig) -> dict[str, float] | None:
    """The final metrics of this job, if ``sweep.resume`` is true and it has finished before.

    Args:
        cfg: The configuration of the job; results of another configuration in the folder are ignored.

    Returns:
        The content of ``metrics.json``; None if the job must run.
    """
    folder = Path(cfg.run_dir)
    if not cfg.sweep.resume or not has_finished(folder):
        return None
    try:
        stored, metrics = read_yaml(folder / "config.yaml"), read_metrics(folder / "metrics.json")
    except DataError as error:
        log.warning("%s The job is run again.", error)
        return None
    if not isinstance(stored, dict) or not _is_of(stored, cfg):
        log.warning("%s holds the results of another configuration: the job is run anew.", folder)
        return None
    log.info("%s has finished before.", folder)
    return metrics


def earlier_checkpoint(cfg: DictConfig) -> Path | None:
    """The last checkpoint of this job, if ``sweep.resume`` is true and there is one.

    The configuration is compared with that in the checkpoint, because a later start may have replaced ``config.yaml``.

    Args:
        cfg: The configuration of the job.

    Returns:
        The file; None if the job must start from the beginning.
    """
    path = Path(cfg.run_dir) / "checkpoints" / "last.ckpt"
    if not cfg.sweep.resume or not path.is_file():
        return None
    try:
        stored = load_checkpoint(path)["eblvm_lit"]["config"]
        check_plain(stored)
    except (DataError, ValueError) as error:
        log.warning("%s The job is run from its beginning.", error)
        return None
    if not _is_of(stored, cfg):
        log.warning("%s is of another configuration: the job is run from its beginning.", path)
        return None
    return path


def _is_of(stored: Any, cfg: DictConfig) -> bool:
    """Whether a stored configuration is that of a job; it has the precision that ``auto`` has chosen."""
    own = cast(dict[str, Any], OmegaConf.to_container(cfg, resolve=True))
    trainer, before = own.get("trainer"), stored.get("trainer")
    if isinstance(trainer, dict) and isinstance(before, dict) and trainer.get("precision") == "auto":
        trainer["precision"] = before.get("precision")
    return _identity(stored) == _identity(own)


def _identity(plain: Mapping[str, Any]) -> str:
    """A configuration as text, without its folder, because a sweep may have been moved.

    Example:
        >>> a = {"run_dir": "/a/0", "csv": "/a/0/metrics.csv", "seed": 1, "sweep": {"resume": False}}
        >>> b = {"run_dir": "/b/0", "csv": "/b/0/metrics.csv", "seed": 1, "sweep": {"resume": True}}
        >>> _identity(a) == _identity(b), _identity(a) == _identity({**b, "seed": 2})
        (True, False)
    """
    text = json.dumps({key: value for key, value in plain.items() if key not in INCIDENTAL}, sort_keys=True)
    return text.replace(json.dumps(str(plain.get("run_dir")))[1:-1], "run_dir")
