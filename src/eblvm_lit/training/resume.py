"""The checkpoint to resume from: how it is found, and what it must have in common with the run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from eblvm_lit.errors import ConfigError, DataError
from eblvm_lit.methods.base import Method
from eblvm_lit.training.changed_settings import changed_settings
from eblvm_lit.training.checkpoint_io import checkpoint_file
from eblvm_lit.utils.untrusted import read_yaml

__all__ = ["changed_rates", "check_settings", "find_checkpoint", "refuse_other_run"]


def _allowed(cfg: DictConfig) -> list[str]:
    """The keys of ``resume.allow``, which name settings or groups of them.

    Raises:
        ConfigError: If there is no such key.
    """
    listed = OmegaConf.select(cfg, "resume.allow") or []
    listed = [listed] if isinstance(listed, str) else list(listed)
    for key in listed:
        if OmegaConf.select(cfg, key, default=...) is ...:  # null is a value
            similar = get_close_matches(key, map(str, cfg), n=1)
            raise ConfigError(
                f"resume.allow names {key!r}, and there is no such key{f' ({similar[0]}?)' if similar else ''}: "
                "--cfg job shows all keys."
            )
    return listed


def check_settings(checkpoint: Mapping[str, Any], cfg: DictConfig, path: Path) -> None:
    """Refuse a checkpoint that was trained with another seed, other data or other settings of the method.

    Args:
        checkpoint: Its content.
        cfg: The configuration of the run; ``resume.allow`` names the keys that may differ.
        path: The file of the checkpoint, for the message.

    Raises:
        ConfigError: Names all differing keys.
    """
    changed = changed_settings(checkpoint["eblvm_lit"]["config"], cfg, _allowed(cfg))
    if changed:
        listed = "; ".join(f"{key}={values}" for key, values in changed.items())
        raise ConfigError(
            f"{path} was trained with {listed}: resume with its settings, or allow the change by "
            f"resume.allow=[{','.join(changed)}]."
        )


def changed_rates(method: Method, checkpoint: Mapping[str, Any], total: int) -> str:
    """The learning rates that a checkpoint's last iteration would not have had in this run, before and from now on.

    Args:
        method: The method of the run.
        checkpoint: Its content.
        total: The iterations of the run, which stretch a cosine.
    """
    done = checkpoint["eblvm_lit"]["iteration"]
    again, now = (method.rates_at(i, total) for i in (done - 1, done))
    states = dict(zip(method.groups, checkpoint["optimizer_states"], strict=True))
    last = {name: state["param_groups"][0]["lr"] for name, state in states.items()}
    changed = {name: (lr, now[name]) for name, lr in last.items() if not math.isclose(lr, again[name])}
    return ", ".join(f"{name}_lr from {before:.3g} to {after:.3g}" for name, (before, after) in changed.items())


def find_checkpoint(cfg: DictConfig) -> Path | None:
    """The checkpoint to resume from.

    ``ckpt=null`` starts a new run, and a path names a checkpoint or the folder of a run. ``ckpt=last`` means the newest
    ``last.ckpt`` of a run with the same method, data and seed, in the folder of this run or below ``outputs_dir``;
    ``resume.allow`` names settings that may differ.

    Args:
        cfg: The configuration of the run.

    Raises:
        DataError: If there is no such file.
    """
    allowed = _allowed(cfg)
    if cfg.ckpt is None:
        return None
    if cfg.ckpt != "last":
        return checkpoint_file(cfg.ckpt)
    own = Path(cfg.run_dir) / "checkpoints" / "last.ckpt"
    if own.is_file():
        return own
    candidates = [path for path in Path(cfg.outputs_dir).glob("**/checkpoints/last.ckpt") if path.is_file()]
    for path in sorted(candidates, key=lambda p: p.stat().st_mtime, reverse=True):
        try:
            stored = read_yaml(path.parent.parent / "config.yaml")
            if not changed_settings(stored, cfg, allowed):
                return path
        except (OSError, AttributeError, KeyError, DataError):
            continue  # not a run folder
    raise DataError(f"ckpt=last: no run with this method, data and seed was found under {cfg.outputs_dir}.")


def refuse_other_run(folder: Path, resume_from: Path | None) -> None:
    """Refuse a folder in which a run has begun or finished, unless a checkpoint of that run is resumed.

    Args:
        folder: The folder of the run that starts.
        resume_from: The checkpoint that it resumes from.

    Raises:
        ConfigError: If the folder holds another run.
    """
    records = [path for name in ("config.yaml", "metrics.json", "checkpoints/*.ckpt") for path in folder.glob(name)]
    if records and (resume_from is None or resume_from.resolve().parent.parent != folder.resolve()):
        advice = "choose another folder by hydra.run.dir=... ."
        raise ConfigError(
            f"{folder} holds a run already: "
            + (f"resume it with ckpt=last, or {advice}" if folder / "checkpoints" / "last.ckpt" in records else advice)
        )
